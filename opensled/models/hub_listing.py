"""What a hub says about a repository, checked: its commit, its files, and which of them make a model.

The answer of `GET /api/models/ORG/REPO/revision/REV?blobs=true` is specified by huggingface_hub (`HfApi.model_info`).
Nothing in it is trusted: a name could lead out of the folder of the repository, a size could fill the disk.
"""

import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from opensled.core.errors import ModelError, NotFound
from opensled.models.hub_names import GgufModel, HubName, choose_model, gguf_models
from opensled.models.model_kind import model_form

COMMIT = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
MAX_FILES = 20_000
MAX_NAME = 512  # characters
MAX_BYTES = 1 << 42  # of one file: more than any model has
MAX_TEXT = 64 << 20  # bytes of a file that is no weights; large tokenizers have 35 MB
CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TEXTS = (".json", ".jinja", ".model", ".txt")  # of a folder with safetensors; never pickles
MORE_TEMPLATES = "additional_chat_templates"  # a folder in it, of templates by name


class HubFile(NamedTuple):
    """A file of a repository."""

    name: str  # path in the repository, with slashes
    bytes: int | None  # None = the listing does not tell
    sha256: str  # hex; "" for a small file, which the hub names by `blob` only
    blob: str  # git's id of the content, hex; "" = unknown

    @property
    def most(self) -> int:
        """Bytes that it may have."""
        limit = MAX_TEXT if _is_text(self.name) else MAX_BYTES
        return limit if self.bytes is None else self.bytes


class Listing(NamedTuple):
    """The files of a repository at one commit."""

    commit: str
    files: dict[str, HubFile]
    unsafe: list[str]  # names that would lie outside of their folder on some system; never fetched


class Selection(NamedTuple):
    """What is fetched of a repository."""

    name: HubName  # with the quantization that was chosen
    files: list[HubFile]  # in the order of fetching
    others: list[str]  # quantizations that could be chosen instead; none where the user chose


def read_listing(content: bytes, repository: str, *more: bytes) -> Listing:
    """The listing of an answer and its further pages.

    Raises ModelError for an answer that is no listing, or whose sizes no file has.
    """
    try:
        document = json.loads(content)
        commit, siblings = document["sha"], [*document["siblings"]]
        for page in map(json.loads, more):
            siblings += page["siblings"] if isinstance(page, dict) else page
        commit = _hex(COMMIT, commit)
        if not commit or len(siblings) > MAX_FILES:
            raise ValueError("no commit, or too many files")
        folders = ("dir", "directory", "folder", "tree")
        files = [_file(each) for each in siblings if each and str(each.get("type")).lower() not in folders]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"the hub's answer about {repository} cannot be used: {error}") from error
    safe = {file.name: file for file in files if _is_safe(file.name)}
    return Listing(commit, safe, [file.name for file in files if file.name not in safe])


def _file(entry: dict[str, Any]) -> HubFile:
    name = (entry.get("rfilename") or entry["path"]).removeprefix("./")
    large = entry.get("lfs")
    large = large if isinstance(large, dict) else {}
    size = _size(large.get("size", entry.get("size")))
    if size is not None and size > MAX_BYTES:
        raise ValueError(f"it says that {name} has {size:.3g} bytes")
    digests = (large.get("sha256"), large.get("oid"), entry.get("sha256"), entry.get("oid"))
    sha256 = next(filter(None, (_hex(SHA256, digest) for digest in digests)), "")
    return HubFile(name, size, sha256, _hex(COMMIT, entry.get("blobId")))


def _size(stated: object) -> int | None:
    """Bytes as a mirror states them: a number, also with a point, as a text, or not at all."""
    text = str(stated).removesuffix(".0")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 40 else None


def _hex(pattern: re.Pattern[str], digest: object) -> str:
    """A digest in small letters, without its method (sha256:...); "" for what is none."""
    bare = re.sub(r"^sha-?\d+[:=-]", "", str(digest).strip(' "').lower())
    return bare if pattern.fullmatch(bare) else ""


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

    Raises NotFound with what there is, and ModelError for a file that is too large, or where only unsafe ones are left.
    """
    models = gguf_models(listing.files)
    has_safetensors = CONFIG in listing.files and any(map(_is_weights, listing.files))
    if not name.choice and has_safetensors:
        return Selection(name, _folder(listing), [model.quant for model in models])
    found = choose_model(models, name.choice)
    if found is None and choose_model(gguf_models(listing.unsafe), name.choice):
        raise ModelError(
            f"the hub's answer about {name.repository} cannot be used: it names the file {listing.unsafe[0]!r:.80}, "
            "which would lie outside of its folder"
        )
    if found is None:
        raise NotFound(_nothing(name, models, has_safetensors, listing.files), "model")
    others = [] if name.choice else [model.quant for model in models if model is not found]
    label = name._replace(choice=name.choice or found.quant)
    return Selection(label, [listing.files[file] for file in found.files], others)


def _nothing(name: HubName, models: list[GgufModel], has_safetensors: bool, files: Collection[str]) -> str:
    if models:
        quants = ", ".join(model.quant for model in models)
        return f"{name.repository} has no GGUF file {name.choice or 'that llama.cpp reads'}; it has {quants}"
    if has_safetensors:
        return f"{name.repository} has no GGUF files but safetensors; run: opensled pull {name.repository}"
    form = model_form(files)
    return (
        f"{name.repository} {f'holds {form}, but' if form else 'has'} neither GGUF files nor a config.json with "
        "safetensors; choose another repository of this model"
    )


def _is_weights(name: str) -> bool:
    return "/" not in name and name.endswith(".safetensors")


def _is_text(name: str) -> bool:
    folder, _, _ = name.rpartition("/")
    return folder in ("", MORE_TEMPLATES) and name.endswith(TEXTS)


def _folder(listing: Listing) -> list[HubFile]:
    """Weights and what belongs to them; config.json comes last: a folder that has it is complete.

    Without an index, model.safetensors is the whole model, and weights beside it are copies or adapters.
    """
    is_alone = WHOLE in listing.files and INDEX not in listing.files
    files = [
        file
        for name, file in listing.files.items()
        if _is_text(name) or (name == WHOLE if is_alone else _is_weights(name))
    ]
    for file in files:
        if _is_text(file.name) and file.bytes and file.bytes > MAX_TEXT:
            raise ModelError(
                f"{file.name} has {file.bytes / 1e6:.0f} MB: no file of its kind needs more than 67 MB"
            )
    return sorted(files, key=lambda file: (file.name == CONFIG, file.name))


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
