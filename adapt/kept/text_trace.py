"""Keeps texts of tenants that have agreed to it: what is remembered of one while it is served (adapt/kept/)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from adapt.kept.kept_store import TOP, KeptText
from opensled.core.messages import TokenLogprobs
from verify_server.riders.opening import Opening
from verify_server.round.rider import Rider
from verify_server.rules.base import Reading, StepRows
from verify_server.rules.decide import StepResult

MAX_TOKENS = 4096  # of one text; what follows is not kept


@dataclass(frozen=True)
class LikeliestReading(Reading):
    """Finds the likeliest tokens in the place of each decided one."""

    def read(self, rows: StepRows) -> list[TokenLogprobs]:
        """Raw: see `Scores.top`."""
        return rows.scores.top(rows.rows, TOP)


class TextTrace(Rider):
    """The likeliest tokens at each position that was committed; `ended` hands the text on, once."""

    def __init__(self, tenant: str, opened: float, first: int, hand_on: Callable[[KeptText], None]) -> None:
        """`opened`: Unix time; `first`: tokens that are there already; `hand_on`: must not block."""
        self._tenant, self._opened, self._first, self._hand_on = tenant, opened, first, hand_on
        self._rows: list[npt.NDArray[np.float64]] = []  # each [TOP, 2]: id, log-probability
        self._ended = False

    @classmethod
    def of(cls, opening: Opening, hand_on: Callable[[KeptText], None]) -> TextTrace | None:
        """None for a guided text, or one about pictures: it says nothing of what the target would write freely."""
        message = opening.message
        if message.images or (message.guide and message.guide.masks):
            return None
        return cls(opening.tenant, time.time(), len(opening.tokens), hand_on)

    def reads(self, start: int, stop: int, decides: bool) -> tuple[Reading, ...]:
        """In the places of the tokens that are decided."""
        return (LikeliestReading(),) if decides else ()

    def committed(self, base: int, news: tuple[int, ...], outcome: StepResult) -> None:
        """As many as tokens."""
        room = MAX_TOKENS - len(self._rows)
        found = outcome.read.get(LikeliestReading, ())[: min(room, len(news))]
        self._rows += [np.array(row, np.float64) for row in found]

    def ended(self, tokens: Sequence[int]) -> None:
        """The text goes to the disk."""
        if self._ended or not self._rows:
            return
        self._ended = True
        rows = np.stack(self._rows)
        ids = tuple(tokens[: self._first + len(rows)])
        top_ids, top = rows[..., 0].astype(np.uint32), rows[..., 1].astype(np.float16)
        self._hand_on(KeptText(self._tenant, self._opened, ids, self._first, top_ids, top))
