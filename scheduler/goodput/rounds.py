"""The table behind assignments: the tokens and seconds of a round of each session, for each arm.

The package's docstring derives the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens, tokens_beside
from hw_profiles.step_cost import DraftingCost
from scheduler.estimates import Forecast
from scheduler.plan import NO_OFFER, OfferView, SessionView

# Draft tokens of a device, or of the server. With 4 and 8 alone, simulated: 0.81 of the tokens/s for 32 users of 8B on
# an A100 (the server drafts 1); with 2, 4 and 8, 0.83 for 16 at a Jetson (3 fit in a step, 4 miss the next one).
LENGTHS = (1, 2, 3, 4, 6, 8)
BOTH = (2, 4, 8)  # chosen: of each, where both draft
ALONE = 1 + len(LENGTHS)  # arms without the server: plain decoding, and the device
OF_DRAFTER = len(LENGTHS) + len(BOTH)  # arms of each of the server's drafters: alone, and beside the device
Chosen = NDArray[np.int_]  # the arm of each session
ANSWER = 64  # chosen: tokens still to be written that pay for reading a text at most; most answers end early
NO_FORECAST, NO_DRAFTING = Forecast(0.0, 0.0, 0.0, 0.0), DraftingCost(0.0, 0.0, 0.0)
CHANCES, TIMES = attrgetter("first", "later"), attrgetter("delay_s", "draft_s")


@cache
def arms_of(drafters: int) -> Sequence[NDArray[np.int_]]:
    """Of each arm, where the server has so many drafters, three arrays [arm, 1]: tokens of the device, and of a drafter
    of the server; and which drafter that is. Those of more drafters come behind."""
    alone = [(0, 0, 0), *[(k, 0, 0) for k in LENGTHS]]
    own = [
        (k * beside, k, j) for j in range(drafters) for beside, ks in enumerate((LENGTHS, BOTH)) for k in ks
    ]
    return tuple(np.array([*alone, *own]).T[:, :, None])


def _columns(forecasts: Sequence[Forecast], features: Callable[[Forecast], tuple[float, ...]]) -> Numbers:
    """[feature, session]; in one go, for numpy is slow with a list of tuples."""
    values = np.fromiter(chain.from_iterable(map(features, forecasts)), float)
    return np.ascontiguousarray(values.reshape(len(forecasts), -1).T)


def _lengths(asked: NDArray[np.int_], devices: Sequence[OfferView]) -> NDArray[np.int_]:
    """[arm, session]: tokens that each device drafts; a rule that needs long drafts gets whole ones or none."""
    longest = np.array([one.longest if one.forecast else 0 for one in devices])
    least = np.array([one.least for one in devices])
    whole = np.where((asked == LENGTHS[-1]) & (least <= longest), least, 0)
    return np.where(least > 0, whole, np.minimum(asked, longest))


class RoundTable:
    """The table for some sessions; arrays are [arm, session], or [session]."""

    def __init__(self, sessions: Sequence[SessionView], drafting: Sequence[DraftingCost]) -> None:
        """`drafting`: cost of each drafter of the server."""
        devices, drafters = [one.device for one in sessions], max([len(one.servers) for one in sessions])
        (by_device, by_server, of), costs = arms_of(drafters), (*drafting, *[NO_DRAFTING] * drafters)
        forecasts = [one.forecast or NO_FORECAST for one in devices]
        chances, (delay, draft) = _columns(forecasts, CHANCES), _columns(forecasts, TIMES)
        self.device = _lengths(by_device, devices)
        self.away = np.where(self.device > 0, delay + self.device * draft, 0.0)  # seconds
        self.tokens = 1 + accepted_tokens(chances[0], chances[1], self.device)
        self.drafter, self.own = of[:, 0], np.zeros(self.tokens.shape, int)
        self.drafted = np.zeros(self.tokens.shape)  # tokens of the server's drafters
        self.passes_s = np.zeros(self.tokens.shape)  # seconds of their passes, which sessions share,
        self.added_s = np.zeros(self.tokens.shape)  # and of what each session adds
        for drafter in range(drafters):
            offers = [(*one.servers, *[NO_OFFER] * drafters)[drafter] for one in sessions]
            rows = slice(ALONE + drafter * OF_DRAFTER, ALONE + (drafter + 1) * OF_DRAFTER)
            self._add_server(rows, by_server[rows], offers, chances, costs[drafter], sessions)
        self.allowed = ((self.device > 0) == (by_device > 0)) & ((self.own > 0) == (by_server > 0))
        self.positions = 1 + self.device + self.drafted
        self.contexts = np.array([one.context for one in sessions], float)
        self.paces = np.array([one.pace for one in sessions], float)
        self.drafts = (self.device > 0) | (self.own > 0)
        self.all = np.arange(len(sessions))

    def _add_server(
        self,
        rows: slice,
        asked: NDArray[np.int_],
        offers: Sequence[OfferView],
        device: Numbers,
        cost: DraftingCost,
        sessions: Sequence[SessionView],
    ) -> None:
        """Add the tokens and the time of one drafter's drafts, in addition to those of the device if both draft."""
        forecasts = [one.forecast or NO_FORECAST for one in offers]
        longest = np.array([one.longest if one.forecast else 0 for one in offers])
        own = self.own[rows] = np.minimum(asked, longest)
        offered = np.array([one.share for one in offers])
        apart = np.array([one.apart for one in forecasts])
        added = tokens_beside((*_columns(forecasts, CHANCES),), (*device,), own, self.device[rows])
        self.tokens[rows] += offered * added * np.where(self.device[rows] > 0, apart, 1.0)
        self.drafted[rows] = own * offered
        # Each token that is written is read, and a long text is paid for by what is written after it.
        debts = [each.unread / max(1.0, min(one.left / 2, ANSWER)) for one, each in zip(sessions, offers)]
        read = np.where(own > 0, self.tokens[rows] * (1 + np.array(debts)), 0.0)
        self.passes_s[rows] = cost.seconds(own, 0, 0)
        self.added_s[rows] = cost.seconds(0, self.drafted[rows], read)
