"""The target's tokens as the engines drew them before, one call for each session: the reference of speed and of bits.

Kept as it was. Of the engines it shares the types of a request; of `opensled.core` the noise, and how candidates and
nuclei are found. So it tells that one call for a whole step draws what one call for each session drew. It does not tell
that this is the right draw: `lab/testbed/reference.py`, which imports nothing of the product, does.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from opensled.core.messages import SamplingParams
from opensled.core.noise import GOLDEN, MIX1, MIX2, row_seed
from opensled.core.noise import gumbel as numpy_gumbel
from opensled.core.sampling import most_likely, nucleus, softmax
from verify_server.engine.base import Masks, SampleRequest

NUCLEUS_FIRST = 1024


def torch_tokens(logits: Tensor, requests: Sequence[SampleRequest]) -> list[list[int]]:
    """Tokens for each request from finite logits [rows, vocabulary]."""
    with torch.inference_mode():
        assert logits.amax(dim=-1).isfinite().all()
        greedy: list[int] = []
        tokens = []
        for rows, params, key, position, masks, *_ in requests:
            if params.temperature == 0 and masks is None and not params.logit_bias:
                greedy = greedy or _lowest_argmax(logits).tolist()
                tokens.append([greedy[row] for row in rows])
            else:
                shaped = _shaped(logits[list(rows)].to(torch.float64), params, masks)
                tokens.append(draw(shaped, params, key, position).tolist())
        return tokens


def numpy_tokens(logits: np.ndarray, requests: Sequence[SampleRequest]) -> list[list[int]]:
    """See `torch_tokens`."""
    assert np.isfinite(logits.max(axis=1)).all()
    greedy: list[int] = []
    tokens = []
    for rows, params, key, position, masks, *_ in requests:
        if params.temperature == 0 and masks is None and not params.logit_bias:
            greedy = greedy or logits.argmax(axis=1).tolist()
            tokens.append([greedy[row] for row in rows])
        else:
            shaped = _shaped_array(logits[list(rows)].astype(np.float64), params, masks)
            tokens.append(
                [_numpy_draw(row, params, key, position + index) for index, row in enumerate(shaped)]
            )
    return tokens


def _shaped(logits: Tensor, params: SamplingParams, masks: Masks) -> Tensor:
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias)
        logits[:, list(ids)] += torch.tensor(biases, dtype=torch.float64)
    if masks is not None:
        logits.masked_fill_(~torch.from_numpy(_unpacked(masks, logits.shape[1])), -torch.inf)
    return logits


def _shaped_array(logits: np.ndarray, params: SamplingParams, masks: Masks) -> np.ndarray:
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias)
        logits[:, list(ids)] += np.array(biases)
    if masks is not None:
        logits[~_unpacked(masks, logits.shape[1])] = -np.inf
    return logits


def _unpacked(masks: Sequence[bytes], width: int) -> np.ndarray:
    """Bit masks as bool [rows, width]."""
    packed = np.stack([np.frombuffer(mask, np.uint8) for mask in masks])
    return np.unpackbits(packed, axis=1, count=width, bitorder="little").astype(bool)


def draw(shaped: Tensor, params: SamplingParams, key: bytes, position: int) -> Tensor:
    """Ids [rows] drawn with shared noise from float64 logits [rows, vocabulary]; row i is for `position + i`."""
    if params.temperature == 0:
        return _lowest_argmax(shaped)
    ids, scaled = _candidates(shaped, params)
    return _lowest_argmax(scaled + gumbel(key, position, ids), ids)


def _candidates(shaped: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Ids and logits / temperature, both [rows, n], of what top_k and top_p leave; -inf where they do not."""
    scaled = shaped / params.temperature
    ids = torch.arange(scaled.shape[1], device=scaled.device).expand_as(scaled)
    if params.top_k:
        ids, scaled = _top_k(ids, scaled, params.top_k)
    if params.top_p < 1:
        ids, scaled = _top_p(ids, scaled, params.top_p)
    return ids, scaled


def _top_k(ids: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` best of each row."""
    columns = _best(scores, count)
    return ids.gather(1, columns), scores.gather(1, columns)


def _top_p(ids: Tensor, scores: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """The best of each row, -inf beyond its nucleus: the smallest prefix whose probability reaches `mass`."""
    probs = (scores.softmax(dim=-1) * 2.0**62).to(torch.int64)
    ends = max(1, int(mass * 2.0**62) - 2**22)  # a nucleus may lack 2^-40 of its mass
    for width in (NUCLEUS_FIRST, scores.shape[1]):
        columns = _best(scores, width)
        sorted_probs = probs.gather(1, columns)
        before = sorted_probs.cumsum(dim=-1) - sorted_probs
        if (before[:, -1] >= ends).all():  # every nucleus ended before the last column
            break
    return ids.gather(1, columns), scores.gather(1, columns).masked_fill(before >= ends, -torch.inf)


def _best(scores: Tensor, count: int) -> Tensor:
    """Columns [rows, count] of each row's best, by score descending, then column ascending."""
    count = min(count, scores.shape[1])
    border = scores.topk(count, dim=-1).values[:, -1:]
    above, tied = scores > border, scores == border
    room = count - above.sum(dim=-1, keepdim=True)
    kept = above | (tied & (tied.cumsum(dim=-1) <= room))  # exactly `count` in every row
    columns = kept.nonzero()[:, 1].view(-1, count)
    order = scores.gather(1, columns).sort(dim=-1, descending=True, stable=True).indices
    return columns.gather(1, order)


def _lowest_argmax(scores: Tensor, ids: Tensor | None = None) -> Tensor:
    """The lowest id among the largest scores of each row; torch.argmax promises no order of ties."""
    if ids is None:
        ids = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    best = scores == scores.amax(dim=-1, keepdim=True)
    return ids.masked_fill(~best, torch.iinfo(torch.int64).max).amin(dim=-1)


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value


def _xorshift(x: Tensor, bits: int) -> Tensor:
    """x ^ (x >>> bits) for int64 x."""
    return x ^ _logical_shift(x, bits)


def _logical_shift(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_bits(key: bytes, position: int, ids: Tensor) -> Tensor:
    """The 64-bit hash of each id as int64, shape [rows, n]; row i of `ids` belongs to position `position + i`."""
    seeds = [_signed(row_seed(key, position + row)) for row in range(ids.shape[0])]
    x = (ids + 1) * _signed(GOLDEN) + torch.tensor(seeds, device=ids.device)[:, None]
    x = _xorshift(x, 30) * _signed(MIX1)
    x = _xorshift(x, 27) * _signed(MIX2)
    return _xorshift(x, 31)


def gumbel(key: bytes, position: int, ids: Tensor) -> Tensor:
    """Standard Gumbel noise, float64, for int64 `ids` of shape [rows, n]; row i is for `position + i`."""
    uniform = (_logical_shift(hash_bits(key, position, ids), 12).to(torch.float64) + 0.5) * 2.0**-52
    return uniform.log_().neg_().log_().neg_()


def _numpy_draw(shaped: np.ndarray, params: SamplingParams, key: bytes, position: int) -> int:
    """The id at `position`, drawn with shared noise from float64 logits [vocabulary]."""
    if params.temperature == 0:
        return int(shaped.argmax())
    ids, scaled = _numpy_candidates(shaped, params)
    noisy = scaled + numpy_gumbel(key, position, ids)
    return int(ids[noisy == noisy.max()].min())


def _numpy_candidates(shaped: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logits / temperature, both [n], of what top_k and top_p leave."""
    scaled = shaped / params.temperature
    ids = np.arange(len(scaled))
    if params.top_k:
        ids = most_likely(scaled, params.top_k)
    if params.top_p < 1:
        ids = ids[_nucleus(scaled[ids], params.top_p)]
    return ids, scaled[ids]


def _nucleus(scores: np.ndarray, mass: float) -> np.ndarray:
    """Columns of the smallest set of best scores whose probability reaches `mass`, best first."""
    probs = softmax(scores)
    for width in (NUCLEUS_FIRST, len(scores)):
        columns = most_likely(scores, width)
        kept = nucleus(probs[columns], mass)
        if kept < len(columns):
            break
    return columns[:kept]
