"""Kept texts on disk, truncated and altered: they are listed, expired, learned from and deleted all the same."""

import contextlib
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from adapt.kept.kept_store import MARK, NAME, TOP, KeptStore, KeptText
from lab.training.adapting.material import read_kept
from lab.training.distil.shard_batches import batch_of
from opensled.core.errors import OpenSledError
from tests.fuzz.choices import NUMBERS, Choices

WORDS, IDS, QUOTA = "words", 60, 4_000
STRANGE = (
    "x.npz",
    "00000000000000001-00000000.npz",
    "99999999999999999-ffffffff.npz",
    "-.npz",
    ".npz",
    "\udce4.npz",
)


def kept_text(data: bytes) -> None:
    """A folder of kept texts that somebody has changed."""
    choose, folder = Choices(data), _folder()
    store = KeptStore(folder, QUOTA, choose.pick((0.0, 1e9, 1.0)))
    own = store.folder_of("a")
    shutil.rmtree(folder)
    own.mkdir(parents=True)
    (own / NAME).write_bytes(b"a" if choose.byte() < 200 else choose.bytes(choose.byte() % 8))
    name = STRANGE[1] if choose.byte() < 200 else choose.pick(STRANGE)
    (own / name).write_bytes(_changed(choose, _whole()))
    if choose.byte() > 200:
        Path(f"{own}{MARK}").write_bytes(choose.pick((b"nan", b"inf", b"", b"1e400", choose.bytes(6))))
    for held in store.summarize():
        assert held.texts <= 2 and held.bytes >= 0
    _learn(own)
    store.write(_text(), WORDS)
    store.expire()
    assert sum(held.bytes for held in store.summarize()) <= QUOTA
    store.delete("a")
    assert not own.exists() and not store.write(_text(), WORDS)
    assert not list(folder.rglob("*.npz"))


def _learn(folder: Path) -> None:
    """What is not refused is what a batch can be made of."""
    with contextlib.suppress(OpenSledError):
        texts = [text for text in read_kept(folder, WORDS, IDS) if len(text.top_ids)]
        if texts:
            batch = batch_of(texts)
            assert int(batch.asked.sum()) == len(batch.aims.ids)
            assert batch.ids.max() < IDS and batch.aims.log_probs.isfinite().all()


def _changed(choose: Choices, known: bytes) -> bytes:
    """As it was, or with bytes changed, or cut; or arrays of any sizes and types."""
    kind = choose.byte()
    if kind < 40:
        return known
    if kind > 140:
        return _arrays(choose)
    changed = bytearray(known)
    for _ in range(choose.byte() % 4):
        changed[choose.below(len(changed))] = choose.byte()
    return bytes(changed[: choose.below(len(changed))] if choose.byte() > 128 else changed)


def _arrays(choose: Choices) -> bytes:
    arrays = dict(_known())
    for _ in range(1 + choose.byte() % 3):
        name = choose.pick(sorted(arrays))
        shape = [choose.pick((1, 3, 8, 0, TOP, 2)) for _ in range(choose.byte() % 3)]
        with np.errstate(all="ignore"):
            filled = np.full(shape, choose.pick((*NUMBERS, 2, 59, 60)))
            arrays[name] = filled.astype(
                choose.pick(("int32", "uint32", "uint8", "float16", "float32", "bool", "U4"))
            )
        if choose.byte() > 230:
            del arrays[name]
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _text() -> KeptText:
    rows = np.tile(np.arange(TOP, dtype=np.uint32), (3, 1)), np.full((3, TOP), -4.0, np.float16)
    return KeptText("a", 1.0, tuple(range(8)), 5, *rows)


@cache
def _folder() -> Path:
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(tempfile.mkdtemp(prefix="opensled-fuzz-", dir=fast)) / "kept"


@cache
def _whole_path() -> Path:
    store = KeptStore(_folder().parent / "whole")
    store.write(_text(), WORDS)
    [path] = store.folder_of("a").glob("*.npz")
    return path


@cache
def _known() -> dict[str, np.ndarray]:
    with np.load(_whole_path()) as file:
        return {name: file[name] for name in file.files}


@cache
def _whole() -> bytes:
    return _whole_path().read_bytes()
