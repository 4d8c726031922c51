"""The manifest of a draft that is handed out: whose it is, its files, and what it gained. JSON that is signed as it is.

Every field is checked by who reads it: a server may be hostile, and a key may sign what another release wrote.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from opensled.core.errors import DraftRefused
from opensled.core.printable import visible_line
from opensled.wire.draft_codec import MAX_MANIFEST

FORMAT = 1
MAX_FILES = 16
MAX_BYTES = 4 << 30  # of all files together; chosen: a draft for a device is smaller
MAX_NAME = 128  # characters of a file's name
MAX_TEXT = 256  # characters of a tenant's name, and of what the draft and its target are called
MAX_SERIAL = 1 << 53  # what every reader of JSON can hold
MAX_FIGURES = 8  # temperatures
SUFFIXES = (".gguf", ".onnx", ".data", ".json")
MODELS = (".gguf", ".onnx")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HandedFile:
    """One file of a draft."""

    name: str  # of a file in one folder
    bytes: int
    sha256: str  # hex


@dataclass(frozen=True)
class HandedFigure:
    """What was measured along held-out texts at one temperature."""

    temperature: float
    acceptance: float  # share of the draft tokens that stood
    tokens_per_round: float


@dataclass(frozen=True)
class DraftManifest:
    """What a key signs."""

    tenant: str  # whose devices may have it
    serial: int  # of this tenant's drafts; only grows, by a rollback, too
    name: str  # of the draft, for people
    created: float  # Unix time
    fingerprint: str  # of the target's vocabulary
    target: str  # what it was adapted to, for people; "" = unknown
    files: tuple[HandedFile, ...]
    passed: bool  # it gained enough, as opensled adapt measured
    before: tuple[HandedFigure, ...] = ()  # of the draft that it was made from
    after: tuple[HandedFigure, ...] = ()

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def gain(self) -> str:
        """What it gained, for people."""
        pairs = [
            f"{old.acceptance:.2f} -> {new.acceptance:.2f} at T = {new.temperature:g}"
            for old, new in zip(self.before, self.after)
        ]
        told = f"acceptance {', '.join(pairs)}" if pairs else "acceptance not measured"
        return told if self.passed else f"{told}; it passed no gate"

    def title(self) -> str:
        """For people, in one line."""
        return visible_line(f"{self.name}, serial {self.serial}, {self.total / 1e6:.1f} MB, {self.gain}")

    def encode(self) -> bytes:
        """The bytes that are signed."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True, allow_nan=False).encode()


def read_manifest(content: bytes) -> DraftManifest:
    """The manifest in these bytes; raises DraftRefused for what is none."""
    if len(content) > MAX_MANIFEST:
        _refuse(f"it has {len(content)} bytes, at most {MAX_MANIFEST} are read")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        _refuse("it is not JSON")
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        _refuse(f"it is not of format {FORMAT}; bring server and device to one release")
    files = tuple(map(_file, _list(found, "files", MAX_FILES)))
    _check_files(files)
    before, after = (tuple(map(_figure, _list(found, side, MAX_FIGURES))) for side in ("before", "after"))
    if [each.temperature for each in before] != [each.temperature for each in after]:
        _refuse("it compares figures of other temperatures")
    return DraftManifest(
        tenant=_text(found, "tenant"),
        serial=_whole(found, "serial", 1, MAX_SERIAL),
        name=_text(found, "name"),
        created=_number(found, "created", 0, 1e12),
        fingerprint=_digest(found, "fingerprint"),
        target=_text(found, "target", empty=True),
        files=files,
        passed=_field(found, "passed", bool),
        before=before,
        after=after,
    )


def _refuse(why: str) -> NoReturn:
    raise DraftRefused(f"the manifest of the draft cannot be used: {why}")


def _field(found: Any, name: str, kind: type) -> Any:
    value = found.get(name) if isinstance(found, dict) else None
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        _refuse(f"{name} is missing or of another type")
    return value


def _list(found: dict[str, Any], name: str, most: int) -> list[Any]:
    value: list[Any] = _field(found, name, list)
    if len(value) > most:
        _refuse(f"{len(value)} {name}, at most {most}")
    return value


def _text(found: Any, name: str, empty: bool = False) -> str:
    value: str = _field(found, name, str)
    if len(value) > MAX_TEXT or not value.isprintable() or not (value or empty):
        _refuse(f"{name} is not a text of at most {MAX_TEXT} characters")
    return value


def _whole(found: Any, name: str, low: int, high: int) -> int:
    value: int = _field(found, name, int)
    if not low <= value <= high:
        _refuse(f"{name} is not within {low} and {high}")
    return value


def _number(found: Any, name: str, low: float, high: float) -> float:
    value = found.get(name) if isinstance(found, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        _refuse(f"{name} is not a number within {low:g} and {high:g}")
    return float(value)


def _digest(found: Any, name: str) -> str:
    value: str = _field(found, name, str)
    if not _SHA256.fullmatch(value):
        _refuse(f"{name} is not a sha256")
    return value


def _file(found: Any) -> HandedFile:
    name: str = _field(found, "name", str)
    require_name(name)
    return HandedFile(name, _whole(found, "bytes", 1, MAX_BYTES), _digest(found, "sha256"))


def require_name(name: str) -> None:
    """Raises DraftRefused for what is no plain name of a file of a draft: a name must never become another path."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name) or not name.endswith(SUFFIXES):
        _refuse(f"{name[:MAX_NAME]!r} is not a file name of a draft; an example is draft-q8_0.gguf")


def _check_files(files: tuple[HandedFile, ...]) -> None:
    names = [file.name.lower() for file in files]  # some file systems know no case
    if len(set(names)) < len(names):
        _refuse("two files have one name")
    if not any(name.endswith(MODELS) for name in names):
        _refuse("it names no GGUF file and no ONNX graph")
    if sum(file.bytes for file in files) > MAX_BYTES:
        _refuse(f"its files have more than {MAX_BYTES >> 30} GiB together")


def _figure(found: Any) -> HandedFigure:
    return HandedFigure(
        _number(found, "temperature", 0, 100),
        _number(found, "acceptance", 0, 1),
        _number(found, "tokens_per_round", 0, 1e6),
    )
