"""Whether an adapted draft is kept: it must gain, and not by chance."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from lab.testbed.quality.bootstrap import bootstrap
from lab.training.adapting.acceptance import Accepted

SEED = 7


@dataclass(frozen=True)
class Gain:
    """Tokens a round, the mean over the temperatures, with a bootstrap interval of 95 % over the held-out texts."""

    tokens_per_round: float
    low: float
    high: float
    wanted: float

    @property
    def passes(self) -> bool:
        return self.low >= self.wanted

    def facts(self) -> dict[str, object]:
        rounded = {name: round(value, 4) for name, value in asdict(self).items()}
        return {**rounded, "passes": self.passes}


def gain(before: Sequence[Accepted], after: Sequence[Accepted], wanted: float) -> Gain:
    """Of the same texts; they are drawn again together with all that was measured along them."""
    pairs = list(zip(before, after, strict=True))
    values = np.stack(
        [column for old, new in pairs for column in (old.tokens, old.rounds, new.tokens, new.rounds)], axis=1
    )
    found = bootstrap(_mean_gain, values, SEED)
    return Gain(found.mean, found.low, found.high, wanted)


def _mean_gain(sums: np.ndarray) -> np.ndarray:
    """Of sums [..., temperatures * 4]."""
    old_tokens, old_rounds, new_tokens, new_rounds = np.moveaxis(sums.reshape(*sums.shape[:-1], -1, 4), -1, 0)
    gained: np.ndarray = (new_tokens / new_rounds - old_tokens / old_rounds).mean(-1)
    return gained
