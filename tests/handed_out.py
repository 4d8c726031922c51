"""Drafts that are handed out, for tests: a key, a store, and a server that says what a test wants it to say."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

from adapt.handout.draft_store import DraftStore
from adapt.handout.hand_out import DraftHandOut
from adapt.shelf.draft_manifest import DraftManifest, HandedFigure, HandedFile
from adapt.shelf.signature import Signed, Signer, SigningKey
from opensled.core.errors import NotFound
from opensled.wire.draft_codec import PART_BYTES, Reply
from tests.tiny_drafts import TINY_DRAFT, tiny_info

KEY, STRANGER = SigningKey.new(), SigningKey.new()
KITCHEN = Signer("kitchen", KEY.public)
WORDS = "f" * 64  # vocabulary of tests.fakes.FakeText
GGUF = "draft-q8_0.gguf"
WEIGHTS = b"GGUF" + (bytes(range(256)) * 1024)[4:]  # four parts
FIGURES = ((0.24, 0.93), (0.2, 0.89))


def handed(content: bytes = WEIGHTS, name: str = GGUF) -> HandedFile:
    return HandedFile(name, len(content), hashlib.sha256(content).hexdigest())


def manifest(serial: int = 1, **changes: object) -> DraftManifest:
    """Of one file, WEIGHTS."""
    before, after = (
        tuple(HandedFigure(0.8 * number, pair[side], 1 + pair[side]) for number, pair in enumerate(FIGURES))
        for side in (0, 1)
    )
    plain = DraftManifest(
        "kitchen", serial, "mine", 1.5, WORDS, "target.gguf", (handed(),), True, before, after
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


class SaidLink:
    """A `Link` to a server that says what it was made with; `asked`: files and offsets."""

    server = "127.0.0.1:7411"

    def __init__(self, signed: Signed | None, files: dict[str, bytes] | None = None, **info: object) -> None:
        self._signed, self.info = signed, tiny_info(**{"fingerprint": WORDS, **info})
        self.files = {handed().sha256: WEIGHTS} if files is None else files
        self.asked: list[tuple[str, int]] = []

    async def describe(self):
        return self.info

    async def draft_parts(self, file: str = "", offset: int = 0) -> AsyncGenerator[Reply, None]:
        self.asked.append((file, offset))
        if not file:
            if self._signed is None:
                raise NotFound("no draft is handed out", "draft")
            yield self._signed
            return
        for first in range(offset, len(self.files[file]), PART_BYTES):
            yield self.files[file][first : first + PART_BYTES]


def signed(draft: DraftManifest, key: SigningKey = KEY) -> Signed:
    return key.sign(draft)


def store_with(folder: Path, *drafts: DraftManifest, content: bytes = WEIGHTS) -> DraftStore:
    """A store that hands out these drafts of one file."""
    store = DraftStore(folder)
    store.make()
    source = folder / ".source"
    source.write_bytes(content)
    for draft in drafts:
        file = store.keep_file(source, GGUF)
        draft = replace(draft, files=(file,))
        store.publish(draft, *signed(draft))
    return store


def hand_out(store: DraftStore, rate: float = 1e9) -> DraftHandOut:
    return DraftHandOut(store, rate, Counter(), time.monotonic)


def adapted(folder: Path, passes: bool = True, content: bytes | None = None) -> Path:
    """A folder as opensled adapt leaves it, of the tiny draft's GGUF file or of `content`."""
    folder.mkdir()
    weights = content or (TINY_DRAFT / "tiny-draft-q8_0.gguf").read_bytes()
    (folder / GGUF).write_bytes(weights)
    figures = [
        {"temperature": each.temperature, "acceptance": each.acceptance, "tokens_per_round": 2.0, "texts": 3}
        for each in manifest().before
    ]
    report = {
        "files": {GGUF: hashlib.sha256(weights).hexdigest()},
        "parents": {"target": {"file": "target.gguf"}, "vocabulary": tiny_info().fingerprint},
        "before": figures,
        "after": [{**each, "acceptance": 0.9} for each in figures],
        "gain": {"passes": passes},
    }
    (folder / "adapted.json").write_text(json.dumps(report))
    return folder
