"""What a hub says about a repository, checked: its commit, its files, and which of them make a model.

The answer of `GET /api/models/ORG/REPO/revision/REV?blobs=true` is specified by huggingface_hub (`HfApi.model_info`).
Nothing in it is trusted: a name could lead out of the folder of the repository, a size could fill the disk.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from opensled.core.errors import ModelError, NotFound
from opensled.models.hub_names import GgufModel, HubName, chosen, gguf_models

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_FILES = 20_000
MAX_NAME = 512  # characters
MAX_BYTES = 1 << 42  # of one file: more than any model has
MAX_TEXT = 64 << 20  # bytes of a file that is no weights; large tokenizers have 35 MB
CONFIG, INDEX = "config.json", "model.safetensors.index.json"
TEXTS = (".json", ".jinja", ".model", ".txt")  # of a folder with safetensors; never pickles
MORE_TEMPLATES = "additional_chat_templates"  # a folder in it, of templates by name


class HubFile(NamedTuple):
    """A file of a repository."""

    name: str  # path in the repository, with slashes
    bytes: int
    sha256: str  # hex; "" for a small file, which the hub names by `blob` only
    blob: str  # git's id of the content, hex; "" = unknown


class Listing(NamedTuple):
    """The files of a repository at one commit."""

    commit: str
    files: dict[str, HubFile]


class Selection(NamedTuple):
    """What is fetched of a repository."""

    name: HubName  # with the quantization that was chosen
    files: list[HubFile]  # in the order of fetching
    others: list[str]  # quantizations that could be chosen instead; none where the user chose


def read_listing(content: bytes, repository: str) -> Listing:
    """Raises ModelError for an answer that is no listing, or that names what must not be fetched."""
    try:
        document = json.loads(content)
        commit, siblings = document["sha"], document["siblings"]
        if not COMMIT.fullmatch(commit) or len(siblings) > MAX_FILES:
            raise ValueError("no commit, or too many files")
        files = [_file(entry) for entry in siblings]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"the hub's answer about {repository} cannot be used: {error}") from error
    return Listing(commit, {file.name: file for file in files})


def _file(entry: dict[str, Any]) -> HubFile:
    name, large = entry["rfilename"], entry.get("lfs") or {}
    if not _is_safe(name):
        raise ValueError(f"it names the file {name!r:.80}, which would lie outside of its folder")
    size = large.get("size", entry.get("size", -1))
    if type(size) is not int or not -1 <= size <= MAX_BYTES:
        raise ValueError(f"{name} has {size!r:.40} bytes")
    digest, blob = large.get("sha256") or "", entry.get("blobId") or ""
    return HubFile(
        name, size, digest if SHA256.fullmatch(digest) else "", blob if COMMIT.fullmatch(blob) else ""
    )


def _is_safe(name: str) -> bool:
    """Whether `name` stays in its folder, on every system."""
    parts = name.split("/")
    return (
        0 < len(name) <= MAX_NAME
        and name.isprintable()
        and not {"", ".", ".."} & set(parts)
        and not re.search(r"[\\:]", name)
    )


def select(listing: Listing, name: HubName) -> Selection:
    """The GGUF model that `name` chooses, or without a choice the safetensors, if there are any.

    Raises NotFound with what there is.
    """
    models = gguf_models(listing.files)
    if not name.choice and _has_safetensors(listing):
        return Selection(name, _folder(listing), [model.quant for model in models])
    found = chosen(models, name.choice)
    if found is None:
        raise NotFound(_nothing(name, models, _has_safetensors(listing)), "model")
    others = [] if name.choice else [model.quant for model in models if model is not found]
    label = name._replace(choice=name.choice or found.quant)
    return Selection(label, [listing.files[file] for file in found.files], others)


def _nothing(name: HubName, models: list[GgufModel], has_safetensors: bool) -> str:
    if models:
        return f"{name.repository} has no GGUF file {name.choice}; it has {', '.join(_quants(models))}"
    if has_safetensors:
        return f"{name.repository} has no GGUF files but safetensors; run: opensled pull {name.repository}"
    return (
        f"{name.repository} has neither GGUF files nor a config.json with safetensors, and pickles (.bin, .pt) are "
        "never fetched, for they run code; choose another repository of this model"
    )


def _quants(models: Iterable[GgufModel]) -> list[str]:
    return [model.quant for model in models]


def _has_safetensors(listing: Listing) -> bool:
    return CONFIG in listing.files and any(_is_weights(name) for name in listing.files)


def _is_weights(name: str) -> bool:
    return "/" not in name and name.endswith(".safetensors")


def _is_text(name: str) -> bool:
    folder, _, _ = name.rpartition("/")
    return folder in ("", MORE_TEMPLATES) and name.endswith(TEXTS)


def _folder(listing: Listing) -> list[HubFile]:
    """Weights and what belongs to them; config.json comes last: a folder that has it is complete."""
    names = [name for name in listing.files if _is_weights(name) or _is_text(name)]
    return [listing.files[name] for name in sorted(names, key=lambda name: (name == CONFIG, name))]


def require_bounded(file: HubFile) -> None:
    """Raises ModelError for a file of unknown size, and for a text that is none."""
    if file.bytes < 0:
        raise ModelError(f"the hub does not say how many bytes {file.name} has")
    if file.name.endswith(TEXTS) and file.bytes > MAX_TEXT:
        raise ModelError(
            f"{file.name} has {file.bytes / 1e6:.0f} MB: no file of its kind needs more than 67 MB"
        )


def without_strays(files: list[HubFile], index: bytes) -> list[HubFile]:
    """`files` without weights that the `index` does not name, such as a second copy of all of them.

    Raises ModelError for an index that cannot be read, or that names a file that is not there.
    """
    try:
        parts = set(json.loads(index)["weight_map"].values())
        missing = sorted(parts - {file.name for file in files})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{INDEX} of the repository cannot be used: {error!r:.200}") from error
    if missing or not parts:
        raise ModelError(
            f"{INDEX} of the repository names {missing[0] if missing else 'no weights'!r:.80}, which is not there"
        )
    return [file for file in files if not _is_weights(file.name) or file.name in parts]
