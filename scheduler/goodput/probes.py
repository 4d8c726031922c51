"""Probes: draft sources that rest are asked again now and then, because they can be measured only while they draft.

Devices and the server's drafter follow the same rule. A probe asks the source of one session for drafts of LENGTH
tokens, for about the time of DRAFTS of them. The session is decoded meanwhile, like all whose sources rest. Drafts of a
device cost only this session, at most their time; server drafts, and the rows of both, make the step longer for all:

    costs = DRAFTS * (device's seconds + sessions * (server's seconds + seconds of LENGTH positions))

in session-seconds. The next probe of the source comes after PAUSE times the larger of its costs and its duration, so
probes of all devices, or of the server's drafter, take at most 1 / PAUSE of the sessions' time. Beside these a device
that has rested for RESTED answers is asked as soon as the next one begins.

A source that is known is not probed where it would not pay if all its drafts were right and, of a device, took no time:
nothing that a probe may show would change that.
"""

from __future__ import annotations

from typing import NamedTuple

from hw_profiles.step_cost import DraftingCost
from scheduler.goodput.assignment import StepLoad
from scheduler.plan import OfferView

LENGTH = 4  # tokens of each draft, as a device without a hint drafts
DRAFTS = 3  # the first one after a rest includes the reading of the text, so its time does not count
RESTED = 8  # answers in a row for which a device rests at most (chosen)
PAUSE = 30  # chosen: at most 3 % of the time, against a late notice of changes
GOLDEN = 0.618  # multiples of the golden ratio modulo 1 are spread evenly, and so are first probes


class Probe(NamedTuple):
    """The probes of one source that rests; times of the clock."""

    due: float  # when the next probe may begin
    until: float = 0.0  # when the latest one ends


class ProbeCosts(NamedTuple):
    """The costs of probing one source."""

    lasts_s: float  # duration of a probe
    pause_s: float  # from the beginning of a probe to that of the next one

    @classmethod
    def of(cls, offer: OfferView, sessions: int, load: StepLoad, drafting: DraftingCost | None) -> ProbeCosts:
        """`drafting`: cost of the server's drafter; None = the source is a device."""
        assert offer.forecast is not None
        if drafting is None:
            draft_s, delayed = offer.forecast.away_s(LENGTH), 1
        else:
            draft_s, delayed = float(drafting.seconds(LENGTH, LENGTH, offer.unread)), sessions
        lasts_s = DRAFTS * (draft_s + load.step_s)
        costs_s = DRAFTS * (delayed * draft_s + sessions * LENGTH * load.position_s)
        return cls(lasts_s, PAUSE * max(lasts_s, costs_s))

    def first(self, id: int, now: float) -> Probe:
        """The state before the first probe. It may begin anywhere within the pause, or short answers would never have a
        probe."""
        return Probe(now + self.pause_s * (id * GOLDEN % 1))

    def begin(self, now: float) -> Probe:
        return Probe(now + self.pause_s, now + self.lasts_s)
