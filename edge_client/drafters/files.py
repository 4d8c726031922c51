"""Finding a draft model's file, with errors that say what to do next."""

from __future__ import annotations

from pathlib import Path

from opensled.errors import NotFound, UsageError


def model_file(model: str | None, drafter: str, suffix: str) -> Path:
    """The one file with `suffix` (".gguf") that `model`, a file or a folder, stands for."""
    if not model:
        raise UsageError(f"drafter {drafter} needs a draft model: pass --draft-model with a {suffix} file")
    path = Path(model).expanduser()
    if path.is_dir():
        return _only(path, suffix)
    if not path.exists():
        raise NotFound(f"draft model {path} does not exist; run: opensled models", "model")
    if path.suffix != suffix:
        raise NotFound(f"drafter {drafter} reads {suffix} files, and {path} is none", "model")
    return path


def _only(folder: Path, suffix: str) -> Path:
    found = sorted(folder.glob(f"*{suffix}"))
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found)
    cause = f"several {suffix} files ({names}); name one of them" if found else f"no {suffix} file"
    raise NotFound(f"folder {folder} holds {cause}", "model")
