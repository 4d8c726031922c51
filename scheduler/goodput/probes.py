"""Sources of drafts that rest are asked again now and then, for what they can do is known only while they draft.

One rule for devices and the server's drafter. A probe asks the source of one session for drafts of LENGTH tokens, for
about as long as DRAFTS of them take. Its session is decoded meanwhile, like all that rest. A device's drafts cost this
session their time at most, those of the server and the rows of either cost all sessions a longer step:

    costs = DRAFTS * (device's seconds + sessions * (server's seconds + seconds of LENGTH positions))

session-seconds. The next probe of the source comes PAUSE times its costs later, and PAUSE times its duration: probes of
all devices, or of the server's drafter, take 1 / PAUSE of the sessions' time at most.
"""

from __future__ import annotations

from typing import NamedTuple

from hw_profiles.step_cost import DraftingCost
from scheduler.goodput.assignment import StepLoad
from scheduler.plan import OfferView

LENGTH = 4  # tokens of each draft, as a device without a hint drafts
DRAFTS = 3  # the first one after a rest follows the reading of the text, and its time says nothing
PAUSE = 30  # chosen: 3 % of the time at most, against what is noticed late
GOLDEN = 0.618  # multiples of the golden ratio modulo 1 are spread evenly, and so are first probes


class Probe(NamedTuple):
    """What a source is asked while it rests; clock times."""

    due: float  # when the next probe may begin
    until: float = 0.0  # when the latest one ends


class ProbeCosts(NamedTuple):
    """Of one source."""

    lasts_s: float  # the probe
    pause_s: float  # from its beginning to that of the next one

    @classmethod
    def of(cls, offer: OfferView, sessions: int, load: StepLoad, drafting: DraftingCost | None) -> ProbeCosts:
        """`drafting`: of the server's drafter; None = the source is a device."""
        assert offer.forecast is not None
        if drafting is None:
            draft_s, delayed = offer.forecast.away_s(LENGTH), 1
        else:
            draft_s, delayed = float(drafting.seconds(LENGTH, LENGTH, offer.unread)), sessions
        lasts_s = DRAFTS * (draft_s + load.step_s)
        costs_s = DRAFTS * (delayed * draft_s + sessions * LENGTH * load.position_s)
        return cls(lasts_s, PAUSE * max(lasts_s, costs_s))

    def first(self, id: int, now: float) -> Probe:
        """Before the first probe, which begins anywhere within the pause: else short answers would never see one."""
        return Probe(now + self.pause_s * (id * GOLDEN % 1))

    def begin(self, now: float) -> Probe:
        return Probe(now + self.pause_s, now + self.lasts_s)
