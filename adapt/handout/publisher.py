"""What may be published: a draft that passed the gate of `opensled adapt` and has not changed since."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from adapt.handout.draft_store import DraftStore
from adapt.shelf.draft_manifest import DraftManifest, HandedFigure, HandedFile, require_name
from adapt.shelf.signature import SigningKey
from opensled.core.errors import DraftRefused, NotFound, UsageError
from opensled.core.files import read_kept, user_path
from opensled.core.vocabulary import fingerprint
from opensled.models.gguf_file import read_metadata

REPORT = "adapted.json"  # beside the files, of opensled adapt
# What a device loads of the folder of a draft, the second ones for ONNX Runtime only; safetensors stay here.
GGUF, ONNX = "*.gguf", ("*.onnx", "*.onnx.data", "config.json", "genai_config.json")


class _Measured(NamedTuple):
    """A draft before it is published."""

    name: str
    files: list[Path]
    report: dict[str, Any]  # of opensled adapt; {} = there is none
    fingerprint: str  # of its vocabulary

    @property
    def passed(self) -> bool:
        gain = self.report.get("gain")
        return isinstance(gain, dict) and gain.get("passes") is True

    @property
    def target(self) -> str:
        parents = self.report.get("parents")
        target = parents.get("target") if isinstance(parents, dict) else None
        return str(target.get("file", "")) if isinstance(target, dict) else ""

    def figures(self, side: str) -> tuple[HandedFigure, ...]:
        """Before or after; raises UsageError for a damaged report."""
        try:
            return tuple(
                HandedFigure(each["temperature"], each["acceptance"], each["tokens_per_round"])
                for each in self.report.get(side, [])
            )
        except (TypeError, KeyError) as error:
            raise UsageError(f"{REPORT} of {self.name} is damaged ({side}); adapt the draft again") from error


def candidate(draft: Path, name: str) -> _Measured:
    """The draft in a folder or GGUF file; raises NotFound, UnsupportedModel and UsageError."""
    path = user_path(draft)
    folder = path if path.is_dir() else path.parent
    files = _files(path) if path.is_dir() else [path]
    if not path.exists() or not any(file.suffix == ".gguf" for file in files):
        raise NotFound(f"{path} is not a GGUF file or a folder with one; opensled adapt writes one", "draft")
    for file in files:
        try:
            require_name(file.name)
        except DraftRefused as error:
            raise UsageError(f"{file} cannot be handed out under this name: {error}") from error
    gguf = next(file for file in files if file.suffix == ".gguf")
    pieces = read_metadata(gguf).get("tokenizer.ggml.tokens")
    if not isinstance(pieces, list) or not pieces:
        raise UsageError(f"{gguf} has no tokenizer, so it cannot draft for any target")
    return _Measured(name or path.stem, files, _report(folder), fingerprint(pieces))


def _files(folder: Path) -> list[Path]:
    patterns = (GGUF, *ONNX) if any(folder.glob(ONNX[0])) else (GGUF,)
    return sorted({file for pattern in patterns for file in folder.glob(pattern)})


def _report(folder: Path) -> dict[str, Any]:
    path = folder / REPORT
    try:
        found = json.loads(read_kept(path) or b"{}")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {}


def publish_draft(
    store: DraftStore, key: SigningKey, tenant: str, found: _Measured, ungated: bool = False, serial: int = 0
) -> DraftManifest:
    """Hand out this draft from now on; raises UsageError for one that may not be. `serial` 0 = the next one."""
    if not (found.passed or ungated):
        raise UsageError(
            f"{found.name} has not passed the gate of opensled adapt: there is no {REPORT} next to it. Adapt the "
            "draft, or add --ungated to publish it anyway"
        )
    number = _serial(store, tenant, serial)
    files = tuple(store.keep_file(file, file.name) for file in found.files)
    passed = found.passed and _is_unchanged(found, files, ungated)
    draft = DraftManifest(
        tenant=tenant,
        serial=number,
        name=found.name,
        created=round(time.time(), 3),
        fingerprint=_vocabulary(found),
        target=found.target,
        files=files,
        passed=passed,
        before=found.figures("before"),
        after=found.figures("after"),
    )
    return _hand_out(store, key, draft)


def _serial(store: DraftStore, tenant: str, asked: int) -> int:
    following = store.next_serial(tenant)
    if asked and asked < following:
        raise UsageError(
            f"--serial {asked} is too low: {tenant} has had serial {following - 1}, and devices accept only higher ones"
        )
    return asked or following


def _is_unchanged(found: _Measured, files: tuple[HandedFile, ...], ungated: bool) -> bool:
    """Whether these are the bytes that were measured; raises UsageError if not, unless they are `ungated`."""
    known = found.report.get("files")
    known = known if isinstance(known, dict) else {}
    changed = [file.name for file in files if known.get(file.name) != file.sha256]
    if changed and not ungated:
        raise UsageError(
            f"{changed[0]} is not the file that opensled adapt measured: its sha256 differs from {REPORT}. Adapt the "
            "draft again, or add --ungated"
        )
    return not changed


def _vocabulary(found: _Measured) -> str:
    """Of the target. A draft may have more ids than its target, so what opensled adapt compared counts first."""
    parents = found.report.get("parents")
    known = parents.get("vocabulary") if isinstance(parents, dict) else None
    return known if isinstance(known, str) else found.fingerprint


def roll_back(store: DraftStore, key: SigningKey, tenant: str, to: int = 0) -> DraftManifest:
    """Hand out an earlier draft again, under a new serial, so that devices take it. Raises NotFound.

    `to`: serial of that draft; 0 = the newest one with other files.
    """
    history = [each.draft for each in store.history(tenant)]
    if not history:
        raise NotFound(f"no draft of {tenant!r} is handed out; see opensled drafts list", "tenant")
    newest = history[-1].files
    earlier = [each for each in history if (each.serial == to if to else each.files != newest)]
    if not earlier:
        kept = ", ".join(str(each.serial) for each in history)
        raise NotFound(f"{tenant!r} has no such earlier draft; the store has serials {kept}", "to")
    again = replace(earlier[-1], serial=store.next_serial(tenant), created=round(time.time(), 3))
    return _hand_out(store, key, again)


def _hand_out(store: DraftStore, key: SigningKey, draft: DraftManifest) -> DraftManifest:
    try:
        signed = key.sign(draft)
    except (DraftRefused, ValueError) as error:
        raise UsageError(f"{draft.name} cannot be published: {error}") from error
    store.publish(draft, signed.manifest, signed.signature)
    return draft
