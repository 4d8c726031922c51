"""Resolves a model's name or path, for a checkout, an editable install and a wheel."""

import re
from pathlib import Path

from opensled.errors import NotFound

_PACKAGE = Path(__file__).resolve().parent
# The wheel carries the files of the checkout's `models/` inside the package.
_FOLDERS = (_PACKAGE / "_models", _PACKAGE.parent / "models")


def bundled_folder() -> Path:
    """The folder of the models that come with OpenSLED."""
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def known_models() -> list[str]:
    """Names of the models that come with OpenSLED, in alphabetical order."""
    folder = bundled_folder()
    if not folder.is_dir():
        return []
    return sorted(
        item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith((".", "_"))
    )


def model_path(name_or_path: str, must_have: str | None = None) -> Path:
    """The folder or file of a bundled model's name, or of a path; a bundled name wins over a path of that name.

    `must_have`, a glob pattern such as "*.gguf", must match a file of that folder, or the file itself.
    Raises NotFound with the next step.
    """
    path = (
        bundled_folder() / name_or_path if name_or_path in known_models() else Path(name_or_path).expanduser()
    )
    if not name_or_path or not path.exists():
        raise NotFound(f"no model {name_or_path!r}; {_next_step()}", "model")
    if must_have is not None and not _matches(path, must_have):
        raise NotFound(f"{path} has no {must_have}; {_next_step()}", "model")
    return path


def model_file(name_or_path: str, pattern: str) -> Path:
    """The one file of a model that matches `pattern`, or the path itself if it names a file."""
    matches = _matches(model_path(name_or_path, pattern), pattern)
    if len(matches) > 1:
        names = ", ".join(item.name for item in matches)
        raise NotFound(f"{matches[0].parent} has several {pattern}; name one by its path: {names}", "model")
    return matches[0]


def _matches(path: Path, pattern: str) -> list[Path]:
    candidates = [path] if path.is_file() else sorted(path.iterdir())
    return [item for item in candidates if item.is_file() and item.match(pattern)]


def _next_step() -> str:
    names = ", ".join(known_models()) or "none"
    return f"bundled models: {names}; give one of these or the path of a model (see: opensled models list)"


def heldout_path() -> Path:
    """The bundled held-out tasks, one JSON object per line."""
    path = bundled_folder() / "heldout.jsonl"
    if not path.is_file():
        raise NotFound(
            f"{path} is missing; install OpenSLED again, or run from a complete checkout", "heldout"
        )
    return path


_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form "organisation/model" and nothing on this machine has that path."""
    return _HUB_ID.fullmatch(name) is not None and not Path(name).exists()
