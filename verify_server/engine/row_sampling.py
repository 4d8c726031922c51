"""One row's token on a CPU, in numpy: ids that cannot win are left out before a logarithm is taken.

The winner is the argmax of `z / T + G` over the vocabulary. G costs two float64 logarithms for each id. So cheap
float32 arithmetic first finds the few ids that can still win. Exact float64 arithmetic then decides among those, and
the token is the one that exact arithmetic over all ids gives.

The noise from a uniform number u is G = -log(-log u) <= -log(1 - u), so the score of an id is at most
`z / T - log(1 - u)`. An id whose bound is below the exact score of another id loses. The hash gives 1 - u, and the
bits of a float32 give its binary logarithm: for m = 2^e (1 + f) they say e + f, and e + f <= log2(m).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import e, inf, isfinite, log, log2
from typing import NamedTuple

import numpy as np

from opensled.core.errors import NonFiniteLogits
from opensled.core.messages import SamplingParams
from opensled.core.noise import GOLDEN, MASK64, MIX1, MIX2, gumbel, row_seed
from opensled.core.penalties import Emitted, penalize
from opensled.core.sampling import most_likely, nucleus
from verify_server.engine.base import SampleRequest, each_emitted, each_mask

# Ids hashed at a time: two buffers of 64-bit numbers, 512 KiB, fit the L2 cache of a core; fastest of 8192 to 65536.
BLOCK = 32768
UNIT = 2.0**23  # of the bits of a float32, per unit of the binary logarithm
EXPONENT = 127 + 31  # what the bits of m = (1 - u) * 2^31 as float32 add to the binary logarithm of 1 - u
# Rounding of the bound in units of log2: float32 errs by 2^-24 of numbers that are below 256 where an id can win.
SLACK = 2.0**-10
# Two libraries' float64 scores differ by less than this, relative to the larger of 1 and the score: their logarithms
# differ in the last bits, 2^-52.
DOUBT = 2.0**-40
# Nats below the likeliest id within which the nucleus is looked for; most have it in the first.
DEPTHS = (4.0, 8.0, 16.0, inf)
GROUP = 64  # ids of which only the largest counts, when the lowest of the best is estimated

BAD_ROW = "the target gave NaN, infinity or nothing finite; retry or reopen the sequence"
BAD_MASK = "the target gave nothing finite among the ids that may follow"


class Arithmetic(NamedTuple):
    """The functions of an engine whose last bits its tokens depend on."""

    softmax: Callable[[np.ndarray], np.ndarray]  # of float64 [n]
    gumbel: Callable[[bytes, int, np.ndarray], np.ndarray]  # see `opensled.core.noise.gumbel`


def sample(
    requests: Sequence[SampleRequest], row: Callable[[int], np.ndarray], arithmetic: Arithmetic
) -> list[list[int] | NonFiniteLogits]:
    """See `Scores.sample`; `row` gives float logits [vocabulary] by number."""
    return [_answer(request, row, arithmetic) for request in requests]


def _answer(
    request: SampleRequest, row: Callable[[int], np.ndarray], arithmetic: Arithmetic
) -> list[int] | NonFiniteLogits:
    params, tokens, count = request.params, [], len(request.rows)
    each = zip(request.rows, each_mask(request.masks, count), each_emitted(request.emitted, count))
    try:
        for position, (number, mask, emitted) in enumerate(each, request.position):
            logits = row(number)
            token = require_finite(logits)
            if not request.is_plain:
                logits = shape(logits, params, mask, emitted)
                token = draw(logits, params, request.key, position, arithmetic)
            tokens.append(token)
    except NonFiniteLogits as error:
        return error
    return tokens


def require_finite(logits: np.ndarray) -> int:
    """The likeliest id, the lowest of those that tie. Raises NonFiniteLogits for a row that decides nothing."""
    likeliest = int(logits.argmax())
    if not isfinite(logits[likeliest]):  # NaN wins every maximum
        raise NonFiniteLogits(BAD_ROW)
    return likeliest


def shape(
    logits: np.ndarray, params: SamplingParams, mask: bytes | None, emitted: Emitted | None = None
) -> np.ndarray:
    """The row with biases added, penalties applied and forbidden ids at -inf.

    Raises NonFiniteLogits if nothing may follow.
    """
    if params.logit_bias or mask is not None or emitted is not None:
        logits = logits.astype(np.float64)
    if params.logit_bias:
        ids, biases = zip(*params.logit_bias)
        logits[list(ids)] += np.array(biases)
    if emitted is not None:
        penalize(logits, params, emitted)
    if mask is not None:
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), count=len(logits), bitorder="little")
        logits[allowed == 0] = -np.inf
        if not isfinite(logits.max()):
            raise NonFiniteLogits(BAD_MASK)
    return logits


def draw(
    logits: np.ndarray, params: SamplingParams, key: bytes, position: int, arithmetic: Arithmetic
) -> int:
    """The id at `position`, drawn with shared noise from a row of `shape` logits."""
    if params.temperature == 0:
        return int(logits.argmax())
    if params.top_k or params.top_p < 1 or params.min_p:
        ids, scaled = candidates(logits, params, arithmetic.softmax)
    else:
        ids = contenders(logits, params.temperature, key, position)
        scaled = _scale(logits[ids], params.temperature)
    return _winner(ids, scaled, key, position, arithmetic)


def _winner(ids: np.ndarray, scaled: np.ndarray, key: bytes, position: int, arithmetic: Arithmetic) -> int:
    """The lowest of the ids with the largest score; the engine's own noise decides where numpy's is too close to it."""
    noisy = scaled + gumbel(key, position, ids)
    leader = noisy.max()
    close = np.flatnonzero(noisy >= leader - DOUBT * (1 + abs(leader)))
    if len(close) > 1:
        ids = ids[close]
        noisy = scaled[close] + arithmetic.gumbel(key, position, ids)
        return int(ids[noisy == noisy.max()].min())
    return int(ids[close[0]])


def candidates(
    logits: np.ndarray, params: SamplingParams, softmax: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and logits / temperature, both [n], of what top_k, top_p and min_p leave."""
    scaled = _scale(logits, params.temperature)
    if params.top_k:
        ids = best(scaled, params.top_k)
        if params.top_p < 1:
            ids = ids[: nucleus(softmax(scaled[ids]), params.top_p)]
    elif params.top_p < 1:
        ids = _nucleus(scaled, softmax(scaled), params.top_p)
    else:
        ids = np.arange(len(scaled))
    if params.min_p:  # the likeliest id is among those that the others leave
        ids = ids[scaled[ids] >= scaled.max() + log(params.min_p)]
    return ids, scaled[ids]


def best(scores: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` largest scores, likeliest first; ties: lowest id first. Full sorts are for few ids only."""
    groups = scores[: len(scores) // GROUP * GROUP].reshape(-1, GROUP)
    if len(groups) <= count:
        return most_likely(scores, count)
    # So many groups have a maximum at or above this one, so the count-th largest score is not below it.
    floor = np.partition(groups.max(axis=1), -count)[-count]
    ids = np.flatnonzero(scores >= floor)
    return ids[most_likely(scores[ids], count)]


def contenders(logits: np.ndarray, temperature: float, key: bytes, position: int) -> np.ndarray:
    """Ids, ascending, of which one wins at `position`: a handful out of a vocabulary."""
    highest = logits.max()
    bounds = _bounds(logits, highest, log2(e) / temperature, row_seed(key, position))
    first = np.array([bounds.argmax()])
    reached = (_scale(logits[first], temperature) + gumbel(key, position, first))[0]
    base = float(highest) / temperature
    slack = SLACK + abs(base) * 2.0**-48  # the exact scores are rounded, too: float64 errs by 2^-53
    floor = ((reached - base) * log2(e) - EXPONENT - slack) * UNIT
    return np.flatnonzero(bounds >= np.float32(floor))


def _bounds(logits: np.ndarray, highest: np.floating, scale: float, seed: int) -> np.ndarray:
    """float32 [vocabulary]: (b - EXPONENT) * UNIT of an upper bound b of each score, in units of log2.

    Scores are relative to `highest` / temperature. `scale`: units of log2 per logit.
    """
    bounds = np.empty(len(logits), np.float32)
    with np.errstate(over="ignore"):  # to -inf: far below everything
        np.subtract(logits, highest, out=bounds, casting="same_kind")
        bounds *= np.float32(scale * UNIT)
    for places, tail in _tails(len(logits), seed):
        bounds[places] -= tail
    return bounds


def _tails(count: int, seed: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Of each block of ids: which they are, and at most log2(1 - u) as float32, in units and with an offset as above.

    Where (1 - u) * 2^31 is below 2 the number is 0 or negative, and the bound far above every score.
    """
    multiples = _multiples(count)
    hashes, shifted = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    for start in range(0, count, BLOCK):
        places = slice(start, min(start + BLOCK, count))
        x, spare = hashes[: places.stop - start], shifted[: places.stop - start]
        np.add(multiples[places], np.uint64(seed), out=x)
        x ^= np.right_shift(x, np.uint64(30), out=spare)
        x *= np.uint64(MIX1)
        x ^= np.right_shift(x, np.uint64(27), out=spare)
        # The last xorshift leaves the upper 31 bits as they are. Minus the hash: its complement, plus 1.
        x *= np.uint64(-MIX2 & MASK64)
        tail = (x.view(np.uint32)[UPPER::2] >> np.uint32(1)).view(np.int32).astype(np.float32)
        tail -= 1
        yield places, tail.view(np.int32).astype(np.float32)


UPPER = int(np.little_endian)  # which half of a 64-bit number holds its upper bits


@lru_cache(maxsize=2)
def _multiples(count: int) -> np.ndarray:
    """(id + 1) * GOLDEN modulo 2^64 of the ids of a vocabulary."""
    return (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(GOLDEN)


def _scale(logits: np.ndarray, temperature: float) -> np.ndarray:
    return np.divide(logits, temperature, dtype=np.float64)


def _nucleus(scores: np.ndarray, probs: np.ndarray, mass: float) -> np.ndarray:
    """Columns of the smallest set of largest scores whose probability reaches `mass`, of ties the lowest."""
    highest = scores.max()
    for depth in DEPTHS:
        columns = np.flatnonzero(scores >= highest - depth)
        if depth < inf and probs[columns].sum() < mass:
            continue
        # Ties come in any order, three times faster than by id: their probabilities are equal.
        columns = columns[np.argsort(-scores[columns])]
        kept = nucleus(probs[columns], mass)
        if kept < len(columns):
            break
    border = scores[columns[kept - 1]]
    above = columns[:kept][scores[columns[:kept]] > border]
    tied = np.flatnonzero(scores == border)[: kept - len(above)]
    return np.concatenate([above, tied])
