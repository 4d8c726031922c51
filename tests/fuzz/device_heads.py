"""Draft heads on a device: rows of hidden states from a hostile server, and folders of heads from a stranger."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import warnings
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from edge_client.drafters.head import DeviceHead, HeadFactory
from opensled.drafting.head_drafts import NODES
from opensled.drafting.head_form import ABOUT, DRAFT, FORMAT, PARTS, READ, WINDOW, HeadAbout
from opensled.errors import OpenSledError
from opensled.feature_codec import decode_features
from opensled.features import NEWEST
from opensled.messages import SamplingParams
from opensled.noise import noise_key
from opensled.sampling import sampler
from opensled.v1 import verify_pb2 as pb
from tests.fuzz.bodies import changed_json
from tests.fuzz.choices import NUMBERS, Choices

SIZE, LENGTH, IDS = 4, 3, np.arange(5, 28)
LARGEST = float(np.finfo(np.float32).max)
PLACES = (0, 1, 2, 3, 4, 5, 6, 7, 300, 600, 2**31 - 2, 2**31 - 1, 2**32 - 1)


# -- rows ---------------------------------------------------------------------------------------------------------


def device_rows(data: bytes) -> None:
    """Rows of any scales, sizes, counts and positions, between tokens and drafts; a draft is one, or nothing."""
    choose = Choices(data)
    head = _heads()[choose.flag()].create()
    head.begin((1, 6, 7), sampler(SamplingParams(choose.pick((0.0, 0.8, 1e-6))), noise_key(1), False, 3))
    length = 3
    for _ in range(4):
        with contextlib.suppress(OpenSledError):
            for rows in decode_features(choose.some(partial(_rows, choose, length), 4)):
                head.features(rows)
        news = [int(IDS[choose.below(len(IDS))]) for _ in range(choose.byte() % 4)]
        head.commit(news)
        length += len(news)
        _check_drafts(head, choose.flag())
        if choose.over:
            break


def _rows(choose: Choices, length: int) -> pb.Feature:
    """Mostly rows that fit, of hidden states that no target has."""
    count = choose.pick((1, 2, 3, length, NEWEST, NEWEST + 1, 0, 2**32 - 1)) if choose.byte() > 60 else length
    name, size = (
        choose.pick(("hidden:1", "hidden:1", "hidden:1", "hidden:2")),
        choose.pick((4, 4, 4, 4, 3, 2**31)),
    )
    shape = (count, 1, size) if choose.byte() < 240 else choose.pick(((count, size), (count, 2, size), ()))
    fits = min(count, 2 * NEWEST) * min(size, SIZE)
    data = (choose.bytes(8) * (fits // 8 + 1))[:fits] if choose.byte() < 240 else choose.bytes(choose.byte())
    scales = (
        [_scale(choose)] * min(count, 2 * NEWEST)
        if choose.byte() < 240
        else choose.some(lambda: _scale(choose))
    )
    return pb.Feature(
        name=name,
        dtype="int8" if choose.byte() < 250 else choose.text(),
        shape=[min(each, 2**32 - 1) for each in shape],
        data=data.ljust(fits, b"\x7f") if choose.byte() < 240 else data,
        first=choose.pick(PLACES) if choose.byte() > 80 else max(0, length - 1 - min(count, length)),
        scales=scales,
    )


def _scale(choose: Choices) -> float:
    return choose.pick(
        (0.01, 1.0, 1e30, 1e36, LARGEST, *[max(-LARGEST, min(LARGEST, each)) for each in NUMBERS])
    )


def _check_drafts(head: DeviceHead, is_tree: bool) -> None:
    """Chains and trees of ids that the head can draft, with chances."""
    with contextlib.suppress(OpenSledError):
        nodes, chain = (list(head.propose_tree()), []) if is_tree else ([], list(head.propose()))
        assert len(nodes) <= NODES and len(chain) <= LENGTH
        assert all(-1 <= node.parent < place for place, node in enumerate(nodes))
        for token in (*[node.token for node in nodes], *chain):
            assert token.id in IDS and 0 <= token.confidence <= 1.0001
    assert len(head._rows) <= 2 * WINDOW + NEWEST


# -- folders ------------------------------------------------------------------------------------------------------


def device_head(data: bytes) -> None:
    """A folder that `opensled export-head` might have written: what is loaded drafts, or is refused by its name."""
    choose, (folder, known) = Choices(data), _whole(True)
    about = changed_json(json.loads(known[ABOUT]), choose) if choose.byte() > 128 else known[ABOUT]
    changed = {ABOUT: about, PARTS: _parts(choose, known[PARTS]), READ: known[READ], DRAFT: known[DRAFT]}
    if choose.byte() > 200:
        changed[choose.pick((READ, DRAFT))] = _damaged(choose, known[choose.pick((READ, DRAFT))])
    for name, content in changed.items():
        (folder / name).write_bytes(content)
    with contextlib.suppress(OpenSledError), warnings.catch_warnings(action="ignore"):
        factory = HeadFactory(str(folder), 1)
        head = factory.create()
        head.begin((1, 6, 7), sampler(SamplingParams(0.8), noise_key(1), False, 3))
        head.take(0, np.ones((2, len(factory.about.taps), factory.about.size), np.float32))
        for token in head.propose():
            assert token.id in factory._parts.ids and 0 <= token.confidence <= 1.0001


def _parts(choose: Choices, known: bytes) -> bytes:
    """Arrays of any sizes and types, and the same bytes with some of them changed."""
    kind = choose.byte()
    if kind < 100:
        return known
    if kind < 160:
        return _damaged(choose, known)
    arrays = {
        name: np.full(
            [choose.pick((23, 22, 24, 0, 1)) for _ in range(choose.byte() % 3)], choose.byte()
        ).astype(choose.pick(("int64", "float32", "int32", "bool", "float64", "uint8")))
        for name in ("ids", "after", "towards", "more")
        if choose.flag()
    }
    buffer = io.BytesIO()
    np.savez(buffer, **(({"ids": IDS} | arrays) if choose.flag() else arrays))
    return buffer.getvalue()


def _damaged(choose: Choices, content: bytes) -> bytes:
    """Some bytes of a file, or a part of it."""
    changed = bytearray(content)
    for _ in range(1 + choose.byte() % 4):
        changed[choose.below(len(changed))] = choose.byte()
    return bytes(changed[: choose.below(len(changed))] if choose.byte() > 200 else changed)


# -- a small head -------------------------------------------------------------------------------------------------


@cache
def _heads() -> tuple[HeadFactory, HeadFactory]:
    """Without a blank and with one."""
    return HeadFactory(str(_whole(False)[0]), 1), HeadFactory(str(_whole(True)[0]), 1)


@cache
def _whole(has_blank: bool) -> tuple[Path, dict[str, bytes]]:
    """A folder, and what is in its files at first."""
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = small_head(Path(tempfile.mkdtemp(prefix="opensled-fuzz-", dir=fast)), has_blank)
    return folder, {name: (folder / name).read_bytes() for name in (ABOUT, PARTS, READ, DRAFT)}


def small_head(folder: Path, has_blank: bool) -> Path:
    """A head of `SIZE` numbers that drafts `IDS`, as a device loads it."""
    folder.mkdir(exist_ok=True)
    about = HeadAbout(
        "ctc" if has_blank else "specformer", (1,), SIZE, LENGTH, has_blank, False, "tiny", "words"
    )
    (folder / ABOUT).write_text(json.dumps({"format": FORMAT} | asdict(about)))
    rng = np.random.default_rng(1)
    bias = () if has_blank else ("after", "towards")
    parts = {name: rng.normal(size=(len(IDS), 2)).astype(np.float32) for name in bias}
    np.savez(folder / PARTS, ids=IDS, **parts)
    (folder / READ).write_bytes(_reading())
    (folder / DRAFT).write_bytes(_drafting(rng, len(IDS) + has_blank, has_blank))
    return folder


def _reading() -> bytes:
    """A row is kept as it is."""
    nodes = [
        helper.make_node("ReduceMean", ["hidden"], ["inputs"], axes=[1], keepdims=0),
        helper.make_node("Identity", ["hidden"], ["keys"]),
        helper.make_node("Identity", ["hidden"], ["values"]),
    ]
    row = ["n", 1, SIZE]
    given = {"hidden": row, "positions": ["n"]}
    return _graph(nodes, given, {"inputs": ["n", SIZE], "keys": row, "values": row}, {})


def _drafting(rng: np.random.Generator, wide: int, has_blank: bool) -> bytes:
    """A product of the row and the sum of all that is attended to, for each place."""
    nodes = [
        helper.make_node("ReduceSum", ["keys", "axes"], ["seen"], keepdims=0),
        helper.make_node("Add", ["inputs", "seen"], ["state"]),
        helper.make_node("MatMul", ["state", "weight"], ["flat"]),
        helper.make_node("Reshape", ["flat", "shape"], ["logits"]),
        helper.make_node("LogSoftmax" if has_blank else "Identity", ["logits"], ["outputs"]),
    ]
    given = {
        "inputs": [1, SIZE], "newest": [1], "position": [1], "keys": ["m", 1, SIZE], "values": ["m", 1, SIZE],
    }  # fmt: skip
    known = {
        "axes": np.array([0]),
        "weight": rng.normal(size=(SIZE, LENGTH * wide)).astype(np.float32),
        "shape": np.array([LENGTH, wide]),
    }
    return _graph(nodes, given, {"outputs": [LENGTH, wide]}, known)


def _graph(nodes: list, given: dict, made: dict, known: dict) -> bytes:
    def value(name: str, shape: list) -> object:
        whole = name in ("positions", "newest", "position")
        return helper.make_tensor_value_info(name, TensorProto.INT64 if whole else TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "small",
        [value(*each) for each in given.items()],
        [value(*each) for each in made.items()],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content: bytes = model.SerializeToString()
    return content
