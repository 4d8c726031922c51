"""Sources of drafts that rest are asked again now and then, for what they can do is known only while they draft.

One rule for devices and the server's drafter. A probe asks one session's source for DRAFTS drafts of LENGTH tokens. It
delays this session while the device drafts, and all sessions by what it adds to their steps:

    costs = DRAFTS * (away + sessions * (drafting + LENGTH * position))

session-seconds at most. The next probe of this source comes PAUSE * costs later, so that all probes of devices, or of
the server's drafter, take 1 / PAUSE of the sessions' time at most.
"""

from __future__ import annotations

from typing import NamedTuple

from hw_profiles.step_cost import DraftingCost
from scheduler.plan import OfferView

LENGTH = 4  # tokens of each draft: the length of a device without a hint
DRAFTS = 2  # the first one after a rest follows the reading of the text, and its time says nothing
PAUSE = 50  # chosen: 2 % of the sessions' time at most, against what is noticed late
GOLDEN = 0.618  # multiples of the golden ratio modulo 1 are spread evenly, and so are first probes


class Probe(NamedTuple):
    """What a source is asked while it rests; clock times."""

    due: float  # when the next probe may begin
    length: int = 0  # tokens that are asked for now; 0 = none
    drafts: int = 0  # of the source, by which this probe ends,
    until: float = 0.0  # or at this time


def pause_s(offer: OfferView, sessions: int, position_s: float, drafting: DraftingCost | None) -> float:
    """Seconds between two probes of a source; `drafting`: None = it is a device."""
    added_s, away_s = LENGTH * position_s, 0.0
    if drafting is not None:
        added_s += float(drafting.seconds(LENGTH, LENGTH, offer.unread))
    elif offer.forecast is not None:
        away_s = offer.forecast.away_s(LENGTH)
    return PAUSE * DRAFTS * (away_s + sessions * added_s)


def probed(before: Probe, drafts: int, pause: float, now: float) -> Probe:
    """The probe of a resting source that has made so many `drafts`."""
    if before.length and drafts < before.drafts and now < before.until:
        return before
    if now < before.due:
        return Probe(before.due)
    return Probe(now + pause, LENGTH, drafts + DRAFTS, now + pause / DRAFTS)


def first_probe(id: int, pause: float, now: float) -> Probe:
    """Before the first one, which begins anywhere within the pause: else short answers would never see one."""
    return Probe(now + pause * (id * GOLDEN % 1))
