"""The shapes in which a row's bits do not depend on its batch, found by trying them on this machine at load.

A kernel chooses its way through a matrix by the matrix' shape, and another way rounds otherwise. Which shapes agree
depends on dtype, processor, threads and library. Measured with torch 2.13: in bfloat16 on a CPU with AVX512-BF16 any
number of rows agrees; with AMX up to 32 rows do, and up to 128 in oneDNN's order of weights (onednn_linear.py); in
float32 any multiple of 4 or 16. So the smallest multiples that hold here are looked for, for every number of rows that
a step can have.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from verify_server.engine.base import Segment
from verify_server.engine.torch import model_sizes
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch.onednn_linear import OneDNNLinear, device_of, with_weight
from verify_server.engine.torch.packing import Attend, Geometry, pack, padded_rows
from verify_server.engine.torch.paged_table import PagedBackend

ROWS = (1, 4, 16, 32, 64, 128)
TILES = (16, 32, 64, 128)
FEW = 32  # rows that a CPU computes in little more time than one
QUERIES = (1, 4, 8, 16, 32, 64)
SPAN = 64  # positions; smaller ones make more pieces, wider ones more padded keys
# Rows of the output layer computed at once. It is the widest matrix: trying more rows would take longest there.
HEAD_ROWS = 64
# Probe of attention: positions of the text, and parts of it as (first position, queries). Each number of queries that a
# piece can have is tried, as one piece, so none crosses the end of a span: torch's kernel takes rows by 32 or 64, and a
# single row that is left goes a way of its own (11 queries of 3 heads, with AMX: now and then a row differs).
LENGTH = 704
CHUNKS = tuple(
    [
        (SPAN * (7 * count % (LENGTH // SPAN)) + 31 * count % (SPAN - count + 1), count)
        for count in range(1, SPAN + 1)
    ]
)
CROWD = (1, 3, 16)  # sequences computed together
SAMPLE = 4  # of what `find` tried, when it is tried again in a later process
# Sizes of the queries, and of what cancels in attention and in a layer; all else is about 1
SHARP, LARGE, LARGER = 8.0, 256.0, 1024.0


def find(network: PreTrainedModel, backend: str, max_rows: int) -> Geometry | None:
    """The smallest geometry in which bits do not depend on the batch, for steps of up to `max_rows`; None = there is
    none here."""
    if not _only_linear(network):
        return None
    known = _rows_of(network, max_rows)
    if known is None:
        return None
    choices = [replace(known, queries=count, alone=alone) for alone in (False, True) for count in QUERIES]
    if isinstance(backend_of(backend), PagedBackend):
        del choices[1:]  # it has shapes of its own
    return next((choice for choice in choices if _queries_hold(network, backend, choice)), None)


def still_holds(network: PreTrainedModel, backend: str, max_rows: int, found: Geometry) -> bool:
    """Whether what `find` found in an earlier process holds in a sample of what it tried; each call draws anew."""
    if (found.rows, found.tile) not in _choices(network.device.type == "cpu"):
        return False
    if found.queries not in QUERIES or found != _complete(found):
        return False
    most = found.tile or max_rows
    return (
        _only_linear(network)
        and _rows_hold(network, found.rows, most, SAMPLE)
        and _queries_hold(network, backend, found, _draw(CHUNKS, SAMPLE))
    )


def _complete(known: Geometry) -> Geometry:
    """The geometry of those rows, queries and ways that `find` makes."""
    head_rows = min(known.tile, HEAD_ROWS) if known.tile else HEAD_ROWS
    return replace(known, span=SPAN, by_path=True, head_rows=max(known.rows, head_rows))


def _rows_of(network: PreTrainedModel, max_rows: int) -> Geometry | None:
    for rows, tile in _choices(network.device.type == "cpu"):
        if _rows_hold(network, rows, tile or max_rows):
            return _complete(Geometry(rows, queries=1, span=SPAN, tile=tile))
    return None


def _choices(on_cpu: bool) -> Sequence[tuple[int, int]]:
    """Multiples of rows and tiles in the order in which they are tried, the fastest first; tile 0 = none.

    Tiles slow down long prompts, and large multiples every step; on a CPU the second is worse (135 million weights in
    plain layers with AMX: 56 ms for 1 row, 67 for 32, 108 for 128). On a GPU rows cost little and launches much. The
    last resort are tiles of one size, so that every matrix product has the same shape: GPUs choose among many kernels.
    (It was not tried on one.)
    """
    whole, tiled = [(rows, 0) for rows in ROWS], [(tile, tile) for tile in TILES]
    if not on_cpu:
        return whole + tiled
    few = [rows for rows in ROWS if rows <= FEW]
    small = [(rows, tile) for rows in few for tile in reversed(TILES) if tile >= FEW and tile > rows]
    return whole[: len(few)] + small + whole[len(few) :] + tiled


def has_experts(network: PreTrainedModel) -> bool:
    """Whether which weights a row meets is decided in the pass."""
    modules = network.named_modules()
    return any("expert" in name or "moe" in type(module).__name__.lower() for name, module in modules)


def _only_linear(network: PreTrainedModel) -> bool:
    """Whether all matrices are plain linear layers, which can be tried one by one.

    Experts never hold: how many rows one gets depends on the whole batch. They are refused by name, for some of them
    would pass. What only calls itself linear may multiply by a kernel of its own.
    """
    if has_experts(network):
        return False
    for _, module in network.named_modules():
        matrices = any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
        if matrices and not (type(module) in (nn.Linear, OneDNNLinear) or isinstance(module, nn.Embedding)):
            return False
    return True


@torch.inference_mode()
def _rows_hold(network: PreTrainedModel, multiple: int, max_rows: int, sample: int = 0) -> bool:
    """Whether any multiple up to `max_rows` gives a row the same bits; of the output layer, up to HEAD_ROWS.

    `sample`: how many multiples are tried beside the least and the most, 0 = all.
    """
    head = network.get_output_embeddings()
    layers = {module.weight.shape: module for module in network.modules() if isinstance(module, nn.Linear)}
    layers.pop(head.weight.shape, None)
    max_head = max(multiple, min(max_rows, HEAD_ROWS))
    tried = [(layer, max_rows) for layer in layers.values()] + [(head, max_head)]
    return all(_layer_holds(layer, _trial_counts(multiple, most, sample)) for layer, most in tried)


def _trial_counts(multiple: int, max_rows: int, sample: int) -> list[int]:
    counts = list(_counts(multiple, max_rows))
    return counts if not sample else sorted({counts[0], *_draw(counts, sample), counts[-1]})


def _draw(items: Sequence[Any], count: int) -> Sequence[Any]:
    return random.sample(items, min(count, len(items)))


def _layer_holds(layer: nn.Linear, counts: Sequence[int]) -> bool:
    """Whether rows have the same bits among few rows as among the most, at the beginning of a batch or at its end."""
    layer, inputs = _sensitive(layer, counts[-1])
    expected = layer(inputs)
    if not torch.equal(layer(inputs.roll(1, 0)), expected.roll(1, 0)):
        return False
    for number, count in enumerate(counts):
        place = slice(0, count) if number % 2 else slice(len(inputs) - count, None)
        if not torch.equal(layer(inputs[place]), expected[place]):
            return False
    return True


def _sensitive(layer: nn.Linear, count: int) -> tuple[nn.Linear, Tensor]:
    """A layer of that shape, and `count` rows for it, whose results are mostly rounding.

    Every fourth input of the first half is large, and has an opposite in the second half with the same weights: see
    `_AttentionProbe`. Processors that multiply in bfloat16 add neighbours without rounding, so these are far apart.
    """
    like = torch.empty((), dtype=layer.weight.dtype, device=device_of(layer))
    outputs, width = layer.weight.shape
    inputs, weight = (_noise((rows, width), like) for rows in (count, outputs))
    weight = weight.flip(0, 1)  # else some rows of both would be the same
    half = width // 2
    weight[:, half : 2 * half : 4] = weight[:, :half:4]
    inputs[:, :half:4] *= LARGER
    inputs[:, half : 2 * half : 4] = -inputs[:, :half:4]
    return with_weight(layer, weight), inputs


def _counts(multiple: int, max_rows: int) -> Iterator[int]:
    """All numbers of rows that a step of up to `max_rows` is padded to."""
    count = 0
    while count < max_rows:
        count = padded_rows(count + 1, multiple)
        yield count


def _noise(shape: tuple[int, ...], like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[-1])
    return torch.randn(shape, generator=generator).to(like.device, like.dtype)


@torch.inference_mode()
def _queries_hold(
    network: PreTrainedModel, backend: str, geometry: Geometry, chunks: Sequence[tuple[int, int]] = CHUNKS
) -> bool:
    """Whether each query of many chunks has the bits it has when its whole text is computed at once."""
    probe = _AttentionProbe(network, backend, geometry)
    whole = probe.attend([(0, LENGTH)])[0]
    for number in range(len(chunks)):
        # Of two that are alike the pieces meet in one call, whatever they are padded to.
        crowd = [chunks[(number - other // 2) % len(chunks)] for other in range(CROWD[number % len(CROWD)])]
        for (first, queries), own in zip(crowd, probe.attend(crowd)):
            if not torch.equal(own, whole[first : first + queries]):
                return False
    return True


class _AttentionProbe:
    """One text of random queries, keys and values; each sequence of a crowd is a part of it.

    The last bits of sums in float32 seldom show in a bfloat16 result (on SmolLM2's heads 44 of 81,000 differed where
    the order of sums did). So scores are large, and of every four keys two are the same, with large opposite values:
    what remains after they cancel is mostly rounding. They are no neighbours: see `_sensitive`.
    """

    def __init__(self, network: PreTrainedModel, backend: str, geometry: Geometry) -> None:
        text, like = network.config.get_text_config(decoder=True), next(network.parameters())
        heads, key_heads = text.num_attention_heads, model_sizes.key_heads(text)
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        shape = (LENGTH, key_heads, size)
        self._geometry, self._backend = replace(geometry, rows=1), backend_of(backend)
        self._how = Attend(0, size**-0.5, softcap=getattr(text, "attn_logit_softcapping", None))
        self._queries = _noise((LENGTH, heads, size), like) * SHARP
        keys, values = _noise(shape, like), _noise(shape, like).flip(0)
        keys[2::4] = keys[::4]
        values[::4] *= LARGE
        values[2::4] = -values[::4]
        count = -(-LENGTH // BLOCK_SIZE)
        self._blocks = tuple(
            [7 * index % count for index in range(count)]
        )  # scattered: 7 and 44 share no factor
        self._memory = KVMemory(count)
        self._memory.write(0, self._slots(like.device), keys, values)

    def attend(self, chunks: Sequence[tuple[int, int]]) -> list[Tensor]:
        """[queries, heads, size] of each chunk (first position, queries), computed together."""
        segments = [
            Segment((0,) * count, start, self._blocks[: -(-(start + count) // BLOCK_SIZE)], 0)
            for start, count in chunks
        ]
        batch = pack(segments, self._geometry, self._memory, self._backend, self._queries.device)
        queries = torch.cat([self._queries[start : start + count] for start, count in chunks])
        out = self._backend.attend(queries, batch, self._how)
        return list(out.split([count for _, count in chunks]))

    def _slots(self, device: torch.device) -> Tensor:
        places = torch.arange(LENGTH, device=device)
        blocks = torch.tensor(self._blocks, device=device)
        return blocks[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
