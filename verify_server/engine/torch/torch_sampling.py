"""The target's distribution and its tokens in torch, for many rows of many sequences at once.

Rows that need the same steps form a group, and a group is a few kernel launches however many sequences it serves.
On a GPU that is what sampling costs; a CPU draws row by row instead (row_sampling.py), because its caches are small.
"""

from collections.abc import Iterator, Sequence
from math import log
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from opensled.core.messages import SamplingParams
from opensled.core.noise import row_seed
from opensled.core.penalties import Emitted, deductions
from opensled.core.sampling import NEARLY, WHOLE
from verify_server.engine.base import SampleRequest, each_emitted, each_mask
from verify_server.engine.torch.torch_noise import gumbel, wrap_int64

# Sorting a vocabulary of 150k costs 15 ms a row on a CPU; nearly every nucleus lies within this many best tokens.
NUCLEUS_FIRST = 1024
# Logits drawn from at a time. About ten float64 tensors of this size exist together: 1.3 GB.
CHUNK = 1 << 24
NOTHING = -1  # in the place of a token where no finite logit may follow


class Row(NamedTuple):
    """One row to draw from."""

    row: int  # of the logits
    params: SamplingParams
    seed: int  # of its noise, int64
    mask: bytes | None
    emitted: Emitted | None  # what penalties count


def rows_of(request: SampleRequest) -> list[Row]:
    """The rows of a request, each with its own noise, mask and emitted tokens."""
    count = len(request.rows)
    each = zip(request.rows, each_mask(request.masks, count), each_emitted(request.emitted, count))
    return [
        Row(row, request.params, wrap_int64(row_seed(request.key, request.position + index)), mask, emitted)
        for index, (row, mask, emitted) in enumerate(each)
    ]


def draw_all(logits: Tensor, rows: Sequence[Row]) -> list[int]:
    """A token for each of `rows`, drawn with shared noise from logits [rows, vocabulary]; or NOTHING."""
    groups: dict[tuple[bool, int, bool, bool], list[int]] = {}
    for index, row in enumerate(rows):
        params = row.params
        kind = (params.temperature == 0, params.top_k, params.top_p < 1, params.min_p > 0)
        groups.setdefault(kind, []).append(index)
    tokens = [NOTHING] * len(rows)
    for members in groups.values():
        for part in _parts(members, max(1, CHUNK // logits.shape[1])):
            for index, token in zip(part, _draw(logits, [rows[index] for index in part]).tolist()):
                tokens[index] = token
    return tokens


def _parts(members: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(members), most):
        yield members[start : start + most]


def _draw(logits: Tensor, rows: Sequence[Row]) -> Tensor:
    """Tokens [rows] of a group: all greedy, or all with the same top_k, with or without top_p and min_p."""
    device, params = logits.device, rows[0].params
    numbers, each_params, _, masks, emitted = zip(*rows)
    shaped = shape(logits, numbers, each_params, masks, emitted)
    if params.temperature == 0:
        tokens = shaped.argmax(dim=-1)
    else:
        temperatures = _column([one.temperature for one in each_params], device)
        masses = _column([one.top_p for one in each_params], device) if params.top_p < 1 else None
        depths = _column([log(one.min_p) for one in each_params], device) if params.min_p else None
        ids, scaled = candidates(shaped / temperatures, params.top_k, masses, depths)
        seeds = torch.tensor([row.seed for row in rows], device=device)
        tokens = _lowest_argmax(scaled + gumbel(seeds, ids), ids)
    if all(row.mask is None for row in rows):
        return tokens
    return tokens.masked_fill(shaped.amax(dim=-1).isneginf(), NOTHING)


def _column(values: Sequence[float], device: torch.device) -> Tensor:
    """One float64 number for each row, [rows, 1]."""
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]


def shape(
    logits: Tensor,
    rows: Sequence[int],
    params: Sequence[SamplingParams],
    masks: Sequence[bytes | None],
    emitted: Sequence[Emitted | None],
) -> Tensor:
    """float64 logits [rows, vocabulary] with biases added, penalties applied and forbidden ids at -inf.

    One of each argument for each row.
    """
    shaped = logits[torch.tensor(rows, dtype=torch.int64, device=logits.device)].to(torch.float64)
    biases = [(index, id, bias) for index, one in enumerate(params) for id, bias in one.logit_bias]
    if biases:
        indices, ids, values = zip(*biases)
        places = (torch.tensor(indices, device=shaped.device), torch.tensor(ids, device=shaped.device))
        shaped[places] += torch.tensor(values, dtype=torch.float64, device=shaped.device)
    if any(one is not None for one in emitted):
        _penalize(shaped, params, emitted)
    packed = {index: np.frombuffer(mask, np.uint8) for index, mask in enumerate(masks) if mask is not None}
    if packed:
        allowed = np.ones((len(rows), shaped.shape[1]), bool)
        bits = np.unpackbits(np.stack([*packed.values()]), axis=1, count=shaped.shape[1], bitorder="little")
        allowed[[*packed]] = bits
        shaped.masked_fill_(~torch.from_numpy(allowed).to(shaped.device), -torch.inf)
    return shaped


def _penalize(shaped: Tensor, params: Sequence[SamplingParams], emitted: Sequence[Emitted | None]) -> None:
    """`opensled.core.penalties.penalize` for many rows at once, in place."""
    each = [(index, *one.count_tokens()) for index, one in enumerate(emitted) if one is not None]
    lengths = [len(ids) for _, ids, _ in each]
    rows = np.repeat([index for index, _, _ in each], lengths)
    factors = np.repeat([params[index].repetition_penalty for index, _, _ in each], lengths)
    less = np.concatenate([deductions(counts, params[index]) for index, _, counts in each])
    found = (rows, np.concatenate([ids for _, ids, _ in each]), factors, less)
    row, id, factor, lowered = (torch.from_numpy(array).to(shaped.device) for array in found)
    values = shaped[row, id]
    shaped[row, id] = torch.where(values > 0, values / factor, values * factor) - lowered


def target_probs(shaped: Tensor, params: SamplingParams) -> Tensor:
    """The target's distribution, float64 [rows, vocabulary], from logits of that shape."""
    probs = torch.zeros_like(shaped)
    if params.temperature == 0:
        return probs.scatter_(1, shaped.argmax(dim=-1, keepdim=True), 1.0)
    mass = shaped.new_tensor(params.top_p) if params.top_p < 1 else None
    depth = shaped.new_tensor(log(params.min_p)) if params.min_p else None
    ids, scaled = candidates(shaped / params.temperature, params.top_k, mass, depth)
    return probs.scatter_(1, ids, scaled.softmax(dim=-1))


def candidates(
    scaled: Tensor, top_k: int, mass: Tensor | None, depth: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Ids and logits / temperature, both [rows, n], of what top_k, top_p and min_p leave; -inf where they do not.

    `mass`: top_p, or one for each row [rows, 1]; `depth`: likewise the logarithm of min_p; None = off.
    """
    ids = torch.arange(scaled.shape[1], device=scaled.device).expand_as(scaled)
    if top_k:
        ids = best(scaled, top_k)
        scaled = scaled.gather(1, ids)
    if mass is not None:
        ids, scaled = _top_p(ids, scaled, mass)
    if depth is not None:
        scaled = scaled.masked_fill(scaled < scaled.amax(dim=-1, keepdim=True) + depth, -torch.inf)
    return ids, scaled


def _top_p(ids: Tensor, scores: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """The best of each row, -inf beyond its nucleus: the smallest prefix whose probability reaches `mass`.

    Whole numbers are summed. A GPU sums one row in another order than many, and fractions would have other sums.
    """
    parts = (scores.softmax(dim=-1) * WHOLE).to(torch.int64)
    mass = ((mass * WHOLE).to(torch.int64) - NEARLY).clamp(min=1)
    for width in (NUCLEUS_FIRST, scores.shape[1]):
        columns = best(scores, width)
        kept = parts.gather(1, columns)
        before = kept.cumsum(dim=-1) - kept
        if (before[:, -1:] >= mass).all():  # every nucleus ended before the last column
            break
    return ids.gather(1, columns), scores.gather(1, columns).masked_fill(before >= mass, -torch.inf)


def best(scores: Tensor, count: int) -> Tensor:
    """Columns [rows, count] of each row's best, by score descending, then column ascending."""
    count = min(count, scores.shape[1])
    border = scores.topk(count, dim=-1).values[:, -1:]
    above, tied = scores > border, scores == border
    room = count - above.sum(dim=-1, keepdim=True)
    kept = above | (tied & (tied.cumsum(dim=-1) <= room))  # exactly `count` in every row
    columns = kept.nonzero()[:, 1].view(-1, count)
    order = scores.gather(1, columns).sort(dim=-1, descending=True, stable=True).indices
    return columns.gather(1, order)


def _lowest_argmax(scores: Tensor, ids: Tensor) -> Tensor:
    """The lowest id among the largest scores of each row, both [rows, n]."""
    winners = scores == scores.amax(dim=-1, keepdim=True)
    return ids.masked_fill(~winners, torch.iinfo(torch.int64).max).amin(dim=-1)
