"""Expected tokens of a round of speculative decoding: the formulas that devices, policies and planners share.

A round verifies k draft tokens and commits those before the first rejection, and one token of the target's own. With
reach(i), the chance that the first i draft tokens all stand,

    E(k) = 1 + reach(1) + ... + reach(k)

Where each token stands with the same chance a, given that those before it stand, reach(i) = a^i and

    E(k) = (1 - a^(k+1)) / (1 - a)          Leviathan et al. 2023, arXiv 2211.17192, equation 1

Where the first token has a chance of its own, reach(i) = first * later^(i-1), for first tokens of a draft are accepted
less often than those after an accepted one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def reach(chances: Sequence[float]) -> Numbers:
    """Chance that the first k tokens stand, for k = 0, 1, ..., len(chances); `chances`: of each after those before."""
    return np.fromiter(accumulate((1.0, *chances), mul), np.float64)


def accepted_tokens(first: Any, later: Any, length: Any) -> Any:
    """Mean accepted tokens of a draft: first * (1 - later^k) / (1 - later). Numbers, or arrays that broadcast."""
    return first * np.where(later < 1, (1 - later**length) / np.maximum(1 - later, 1e-9), length)


def tokens_beside(own: Sequence[Any], other: Sequence[Any], length: Any, others: Any) -> Any:
    """Mean tokens that a draft of `length` tokens adds to what stands of another one of `others` tokens, if neither
    knew of the other: the sum of reach(i) * (1 - the other's reach(i)). `own`, `other`: first and later chances."""
    (first, later), (its_first, its_later) = own, other
    both = accepted_tokens(first * its_first, later * its_later, np.minimum(length, others))
    return accepted_tokens(first, later, length) - both


LONGEST = 16  # draft tokens: the server's default limit
WORTH = 1.05  # smaller gains count as none: the law is not that exact
STEPS = 1.5  # of a busy server, from a block to its answer: half of one under way, and one of its own
