"""Random steps of paged attention, and what a dense formula in float64 says of each row; shares no product code with
the backends but the packed batch that they are given. For a GPU and for the tests."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verify_server.engine.base import MAX_TREE, Segment
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.kv_memory import KVMemory
from verify_server.engine.torch.packing import Attend, AttentionBackend, Geometry, pack

CPU = torch.device("cpu")
PAGE = 16
# Largest error, relative to the spread of what is expected
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 0.05, torch.bfloat16: 0.3}


@dataclass(frozen=True)
class Shape:
    """Of the heads, and of what a layer asks for."""

    kv_heads: int
    folded: int  # query heads of one KV head
    size: int
    value_size: int
    window: int | None = None
    softcap: float | None = None

    @property
    def attend(self) -> Attend:
        return Attend(0, self.size**-0.5, self.window, self.softcap)


class Step:
    """Sequences in scattered blocks, each with a text in KV and rows to compute."""

    def __init__(self, shape: Shape, segments: Sequence[Segment], blocks: int, seed: int = 0) -> None:
        self.shape, self.segments = shape, list(segments)
        noise = torch.Generator().manual_seed(seed)
        slots = (blocks + 1) * PAGE
        self.keys = torch.randn(slots, shape.kv_heads, shape.size, generator=noise, dtype=torch.float64)
        self.values = torch.randn(
            slots, shape.kv_heads, shape.value_size, generator=noise, dtype=torch.float64
        )
        count = sum(len(segment.tokens) for segment in segments)
        heads = shape.kv_heads * shape.folded
        self.query = torch.randn(count, heads, shape.size, generator=noise, dtype=torch.float64)
        self.blocks = blocks

    def by(
        self, backend: AttentionBackend, dtype: torch.dtype, by_path: bool = False, device: torch.device = CPU
    ) -> torch.Tensor:
        """[rows, heads, value size] of a backend on `device`."""
        memory = self._memory(dtype, PAGE if backend is backend_of("sdpa") else 1, device)
        geometry = Geometry(rows=1, queries=1, span=64, by_path=by_path)
        batch = pack(self.segments, geometry, memory, backend, device)
        rows = batch.tokens.shape[1]
        query = torch.zeros(rows, *self.query.shape[1:], dtype=dtype, device=device)
        query[: len(self.query)] = self.query.to(device, dtype)
        return backend.attend(query, batch, self.shape.attend)[: len(self.query)]

    def _memory(self, dtype: torch.dtype, page: int, device: torch.device) -> KVMemory:
        """What no row may read holds NaN; of `page` slots all that one holds are clean, as the engine keeps them."""
        memory, used = KVMemory(self.blocks), torch.zeros(len(self.keys), dtype=torch.bool)
        for segment in self.segments:
            end = -(-(segment.start + len(segment.tokens)) // page) * page
            used[[_slot(segment, place) for place in range(end)]] = True
        slots = torch.arange(self.blocks * PAGE, device=device)
        stored = [tensor[: len(slots)].to(device, dtype) for tensor in (self.keys, self.values)]
        memory.write(0, slots, *stored)
        for tensor in memory.layer(0):
            tensor[~used.to(device)] = torch.nan
        return memory

    def expected(self, dtype: torch.dtype, device: torch.device = CPU) -> torch.Tensor:
        """Of numbers rounded to `dtype`, computed in float64."""
        query, keys, values = (
            tensor.to(device, dtype).double() for tensor in (self.query, self.keys, self.values)
        )
        counts = [len(segment.tokens) for segment in self.segments]
        rows = [
            self._rows(segment, own, keys, values) for segment, own in zip(self.segments, query.split(counts))
        ]
        return torch.cat(rows)

    def _rows(
        self, segment: Segment, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        """Of the rows of one segment: [rows, heads, size] -> [rows, heads, value size]."""
        shape = self.shape
        slots = [_slot(segment, place) for place in range(segment.start + len(segment.tokens))]
        asked = query.view(len(query), shape.kv_heads, shape.folded, shape.size)
        scores = torch.einsum("qhfd,khd->hfqk", asked, keys[slots]) * shape.size**-0.5
        if shape.softcap is not None:
            scores = torch.tanh(scores / shape.softcap) * shape.softcap
        seen = torch.zeros(len(query), len(slots), dtype=torch.bool)
        for index in range(len(query)):
            path = _path(segment, index)  # in order of position
            seen[index, path[-(shape.window or len(path)) :]] = True
        weights = scores.masked_fill(~seen.to(scores.device), -torch.inf).softmax(-1)
        return torch.einsum("hfqk,khd->qhfd", weights, values[slots]).flatten(1, 2)


def _slot(segment: Segment, place: int) -> int:
    return segment.blocks[place // PAGE] * PAGE + place % PAGE


def _path(segment: Segment, index: int) -> list[int]:
    """The places that token `index` of a segment sees."""
    known = len(segment.tokens) - len(segment.parents)
    if index < known:
        return list(range(segment.start + index + 1))
    path, node = [], index - known
    while node >= 0:
        path.append(segment.start + known + node)
        node = segment.parents[node]
    return list(range(segment.start + known)) + path[::-1]


def random_segment(draw: random.Random, blocks: list[int], max_text: int, max_rows: int) -> Segment:
    """A prompt's chunk, a row of decoding, a chain of a draft or a tree; takes its blocks from the list."""
    start = draw.choice([0, draw.randrange(max_text), draw.randrange(max_text)])
    count = draw.choice([1, draw.randint(1, 8), draw.randint(1, max_rows)])
    if start == 0 and draw.random() < 0.5:
        count = max_rows
    parents: tuple[int, ...] = ()
    if start and draw.random() < 0.6:
        nodes = draw.randint(1, max_rows)
        parents = tuple([draw.randint(max(-1, node - 4), node - 1) for node in range(nodes)])
        count = draw.randint(1, 3) + nodes
    own = [blocks.pop() for _ in range(-(-(start + count) // PAGE))]
    return Segment((0,) * count, start, tuple(own), count, parents)


def random_shape(draw: random.Random) -> Shape:
    """Of any heads."""
    return Shape(
        kv_heads=draw.choice([1, 2, 3]),
        folded=draw.choice([1, 2, 3, 4, 5, 7, 8]),
        size=draw.choice([8, 16, 24, 64, 80]),
        value_size=draw.choice([8, 16, 40, 64]),
        window=draw.choice([None, None, 1, 5, 33, 300]),
        softcap=draw.choice([None, None, 2.0, 30.0]),
    )


def random_step(
    seed: int, max_text: int = 700, max_rows: int = 40, sequences: int = 3, shape: Shape | None = None
) -> Step:
    """`max_rows`: 64 at most, of a tree; `shape`: None = a random one."""
    draw = random.Random(seed)
    shape = shape or random_shape(draw)
    blocks = list(range(sequences * (-(-(max_text + max_rows + 4) // PAGE) + 1)))
    draw.shuffle(blocks)
    count = len(blocks)
    segments = [random_segment(draw, blocks, max_text, max_rows) for _ in range(draw.randint(1, sequences))]
    return Step(shape, segments, count, seed)


def long_step(shape: Shape, texts: Sequence[int], seed: int = 0) -> Step:
    """Behind each text, in scattered blocks: a row, a chain and a tree by turns."""
    counts = (1, 3, 6)
    sizes = [-(-(text + max(counts)) // PAGE) for text in texts]
    blocks = list(range(sum(sizes)))
    random.Random(seed).shuffle(blocks)
    segments = []
    for number, (text, size) in enumerate(zip(texts, sizes)):
        count = counts[number % len(counts)]
        parents = (-1, 0, 0, -1, 3) if count == max(counts) else ()
        own = tuple(blocks[sum(sizes[:number]) :][:size])
        segments.append(Segment((0,) * count, text - 1, own, count, parents))
    return Step(shape, segments, len(blocks), seed)


def full_tree(shape: Shape, text: int) -> Step:
    """The largest tree behind a text of so many tokens."""
    parents = tuple([node // 2 - 1 if node > 1 else node - 1 for node in range(MAX_TREE)])
    count = 1 + MAX_TREE
    blocks = tuple(range(-(-(text - 1 + count) // PAGE)))
    return Step(shape, [Segment((0,) * count, text - 1, blocks, count, parents)], len(blocks))


def error(given: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, relative to the spread of what is expected."""
    return float((given.double() - expected).abs().max() / expected.std())
