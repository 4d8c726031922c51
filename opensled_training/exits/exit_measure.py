"""How far an exit's drafts are right along the target's greedy held-out texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import torch

from opensled_training.exits.exit_pupil import WAY, ExitPupil, NoLayer
from opensled_training.heads.heldout import tokens_per_step
from opensled_training.heads.windows import Window


@dataclass(frozen=True)
class Drafted:
    """Along held-out texts."""

    first_accepted: float  # share of all rows at which a draft's first token is the target's
    tokens_per_round: float  # that a step of the target writes, with drafts of the pupil's length

    def facts(self) -> dict[str, float]:
        return asdict(self)


@torch.inference_mode()
def drafted(pupil: ExitPupil, windows: Sequence[Window]) -> Drafted:
    right = rows = 0
    for window in windows:
        batch = pupil.batch([window], [window.starts()])
        agreed = pupil.guesses(batch)[batch.starts + 1] == batch.aims.tokens[:, 0]
        right, rows = right + int(agreed.sum()), rows + len(agreed)
    return Drafted(round(right / max(1, rows), 4), tokens_per_step(pupil, windows).get(WAY, 0.0))


def without_a_layer(pupil: ExitPupil) -> ExitPupil:
    """The raw exit: the final norm and the output layer read what leaves its last layer."""
    return replace(pupil, head=NoLayer())
