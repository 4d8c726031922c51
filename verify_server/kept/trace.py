"""What is remembered of one sequence while it is served, for a tenant whose texts are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opensled.messages import TokenLogprobs

TOP = 32  # likeliest tokens that are kept at each position
MOST_TOKENS = 4096  # of one text; what follows is not kept


class KeptText(NamedTuple):
    """A text on its way to the disk."""

    tenant: str
    opened: float  # Unix time at which its sequence began
    ids: tuple[int, ...]  # the text from its beginning
    first: int  # tokens that the tenant gave; the target wrote the others
    top_ids: npt.NDArray[np.uint32]  # [written, TOP], likeliest first
    top_log_probs: npt.NDArray[np.float16]  # [written, TOP]


class Trace:
    """The likeliest tokens at each position that was committed; `end` hands the text on, once."""

    def __init__(self, tenant: str, opened: float, first: int, hand_on: Callable[[KeptText], None]) -> None:
        """`first`: tokens that are there already; `hand_on`: must not block."""
        self._tenant, self._opened, self._first, self._hand_on = tenant, opened, first, hand_on
        self._rows: list[npt.NDArray[np.float64]] = []  # each [TOP, 2]: id, log-probability
        self._ended = False

    def add(self, likeliest: Sequence[TokenLogprobs]) -> None:
        """Of the tokens that a step committed."""
        room = MOST_TOKENS - len(self._rows)
        self._rows += [np.array(row, np.float64) for row in likeliest[:room]]

    def end(self, tokens: Sequence[int]) -> None:
        """The sequence is over; `tokens`: all of it."""
        if self._ended or not self._rows:
            return
        self._ended = True
        rows = np.stack(self._rows)
        ids = tuple(tokens[: self._first + len(rows)])
        top_ids, top = rows[..., 0].astype(np.uint32), rows[..., 1].astype(np.float16)
        self._hand_on(KeptText(self._tenant, self._opened, ids, self._first, top_ids, top))
