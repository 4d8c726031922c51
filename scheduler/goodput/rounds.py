"""The table behind assignments: the tokens and seconds of a round of each session, for each arm.

The package's docstring derives the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from hw_profiles.speculation import Numbers, accepted_tokens, tokens_beside
from scheduler.estimates import Forecast
from scheduler.plan import OfferView, SessionView

# Draft tokens of a device, or of the server. With 4 and 8 alone, simulated: 0.81 of the tokens/s for 32 users of 8B on
# an A100 (the server drafts 1); with 2, 4 and 8, 0.83 for 16 at a Jetson (3 fit in a step, 4 miss the next one).
LENGTHS = (1, 2, 3, 4, 6, 8)
BOTH = (2, 4, 8)  # chosen: of each, where both draft
# Each arm: tokens of the device and of the server. Plain decoding, the device, the server, and both.
ARMS = [(0, 0), *[(k, 0) for k in LENGTHS], *[(0, k) for k in LENGTHS], *[(k, k) for k in BOTH]]
OF_DEVICE, OF_SERVER = np.array(ARMS).T[:, :, None]
WITHOUT_SERVER = 1 + len(LENGTHS)  # the first arms, in which the server drafts nothing
Chosen = NDArray[np.int_]  # the arm of each session
ANSWER = 64  # chosen: tokens still to be written that pay for reading a text at most; most answers end early
NO_FORECAST = Forecast(0.0, 0.0, 0.0, 0.0)
CHANCES, TIMES = attrgetter("first", "later"), attrgetter("delay_s", "draft_s")


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

    def __init__(self, sessions: Sequence[SessionView]) -> None:
        devices, servers = [one.device for one in sessions], [one.server for one in sessions]
        longest = np.array([one.longest if one.forecast else 0 for one in servers])
        arms = len(OF_SERVER) if longest.any() else WITHOUT_SERVER
        asked, self.own = OF_DEVICE[:arms], np.minimum(OF_SERVER[:arms], longest)
        forecasts = [one.forecast or NO_FORECAST for one in devices]
        chances, (delay, draft) = _columns(forecasts, CHANCES), _columns(forecasts, TIMES)
        self.device = _lengths(asked, devices)
        self.allowed = ((self.device > 0) == (asked > 0)) & ((self.own > 0) == (OF_SERVER[:arms] > 0))
        self.away = np.where(self.device > 0, delay + self.device * draft, 0.0)  # seconds
        self.tokens = 1 + accepted_tokens(chances[0], chances[1], self.device)
        self.drafted = self.read = np.zeros(self.tokens.shape)  # tokens of the server's drafter
        if longest.any():
            self._add_server(sessions, chances)
        self.positions = 1 + self.device + self.drafted
        self.contexts = np.array([one.context for one in sessions], float)
        self.paces = np.array([one.pace for one in sessions], float)
        self.drafts = (self.device > 0) | (self.own > 0)
        self.all = np.arange(len(sessions))

    def _add_server(self, sessions: Sequence[SessionView], device: Numbers) -> None:
        """Add the tokens and the time of server drafts, in addition to those of the device if both draft."""
        servers = [one.server for one in sessions]
        forecasts = [one.forecast or NO_FORECAST for one in servers]
        offered = np.array([one.share for one in servers])
        apart = np.array([one.apart for one in forecasts])
        added = tokens_beside((*_columns(forecasts, CHANCES),), (*device,), self.own, self.device)
        self.tokens = self.tokens + offered * added * np.where(self.device > 0, apart, 1.0)
        self.drafted = self.own * offered
        # Each token that is written is read, and a long text is paid for by what is written after it.
        debts = [one.server.unread / max(1.0, min(one.left / 2, ANSWER)) for one in sessions]
        self.read = np.where(self.own > 0, self.tokens * (1 + np.array(debts)), 0.0)
