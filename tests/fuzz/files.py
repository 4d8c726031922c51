"""Files that come from strangers, made of a fuzzer's decisions: draft tables, heads of GGUF files, listings of hubs."""

import hashlib
import json
import struct
from functools import cache

import numpy as np

from opensled.drafting import table_file
from opensled.drafting.table_file import TableFile
from opensled.drafting.tables import Rows, TableShape
from tests.fuzz.bodies import changed_json
from tests.fuzz.choices import Choices

HUB_LISTING = {
    "sha": "a" * 40,
    "siblings": [
        {"rfilename": "config.json", "size": 20, "blobId": "b" * 40},
        {"rfilename": "model.safetensors", "size": 500, "lfs": {"size": 500, "sha256": "c" * 64}},
        {"rfilename": "q4/a-Q4_K_M-00001-of-00002.gguf", "size": 400},
        {"rfilename": "q4/a-Q4_K_M-00002-of-00002.gguf", "size": 400},
        {"rfilename": "a-Q8_0.gguf", "size": 800},
    ],
}
HUB_INDEX = {
    "metadata": {"total_size": 500},
    "weight_map": {"a": "model.safetensors", "b": "model.safetensors"},
}
MAX_NESTED = 3_000  # brackets around a header: more than Python's reader takes


def draft_table(choose: Choices) -> bytes:
    """A whole table with anything in its header and any payload, its checksum right for the most part."""
    first, header, payload = _table().split(b"\n", 2)
    if choose.byte() > 128:
        at = choose.below(len(payload) + 1)
        payload = payload[:at] + choose.bytes(choose.byte() % 16) + payload[at + choose.byte() % 16 :]
    known = json.loads(header) | {"bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
    kind = choose.byte()
    if kind > 240:
        header = b"[" * MAX_NESTED + choose.rest()
    else:
        header = json.dumps(known).encode() if kind < 60 else changed_json(known, choose)
    return b"\n".join((first, header, payload))


@cache
def _table() -> bytes:
    """Two leaders with three followers."""
    rows = Rows(
        np.array([[1, 2], [3, 4]], np.uint16),
        np.array([1, 2], np.uint8),
        np.array([[5, 6], [7, 8], [9, 10]], np.uint16),
    )
    return table_file.encode(TableFile(rows, TableShape(2, 2, 2, 2), 52, "f", "fuzzing"))


NAMES = ("general.architecture", "general.alignment", "tokenizer.ggml.tokens", "llama.block_count", "", "a")


def gguf_head(choose: Choices) -> bytes:
    """The head of a GGUF file: mostly whole, with any counts, types and lengths."""
    pairs, tensors = choose.byte() % 5, choose.byte() % 3
    body = b"".join(_pair(choose) for _ in range(pairs)) + b"".join(_tensor(choose) for _ in range(tensors))
    counts = (_count(choose, tensors), _count(choose, pairs))
    whole = b"GGUF" + struct.pack("<IQQ", choose.pick((3, 2, 1, 2**31)), *counts) + body
    return whole[: choose.below(len(whole) + 1)] if choose.byte() > 240 else whole


def _count(choose: Choices, right: int) -> int:
    return right if choose.byte() < 230 else choose.pick((0, 1, 2**31, 2**63, 2**64 - 1))


def _text(choose: Choices) -> bytes:
    content = choose.pick(NAMES).encode() if choose.flag() else choose.text().encode()
    return struct.pack("<Q", _count(choose, len(content))) + content


def _pair(choose: Choices) -> bytes:
    kind = choose.below(16)
    return _text(choose) + struct.pack("<I", kind) + _value(choose, kind)


def _value(choose: Choices, kind: int) -> bytes:
    """Of this type, or what is taken for it; arrays may hold arrays."""
    if kind == 8:
        return _text(choose)
    if kind == 9:
        inner = choose.below(16)
        count = _count(choose, choose.byte() % 4)
        return struct.pack("<IQ", inner, count) + b"".join(_value(choose, inner) for _ in range(count % 4))
    return choose.bytes(8).ljust(8, b"\0")[: choose.pick((8, 4, 1, 2))]


def _tensor(choose: Choices) -> bytes:
    dimensions = _count(choose, choose.byte() % 5) % 2**32
    shape = b"".join(struct.pack("<Q", _count(choose, choose.byte())) for _ in range(dimensions % 5))
    return _text(choose) + struct.pack("<I", dimensions) + shape + struct.pack("<IQ", choose.byte(), 0)
