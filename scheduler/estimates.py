"""What a server learns of one device's drafts: how good they are, how fast they come, and how regularly.

Pure: whoever keeps an estimate says what happened, and how many seconds it took on his clock.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

MEMORY = 64.0  # draft tokens after which half of what was learned of their quality is forgotten
BELIEF = 6.0  # draft tokens that a new device's first guess counts for
SMOOTHING = 0.25  # weight of the latest time against those before it
MOST_DEVICES = 4096  # that are remembered by name


class Forecast(NamedTuple):
    """What is expected of a device's next draft. Times in seconds."""

    first: float = 0.6  # chance that its first token is accepted
    later: float = 0.7  # chance of each token after an accepted one
    delay_s: float = 0.1  # from a verdict that leaves to the draft that follows, without the drafting itself
    draft_s: float = 0.02  # to draft one token
    jitter_s: float = 0.05  # mean deviation of its arrival
    drafts: int = 0  # that have arrived: how much the times rest on; 0 = they are guesses
    tested: float = 0.0  # draft tokens that the target judged, the older ones counted less

    def away_s(self, length: int) -> float:
        """From a verdict that leaves to the arrival of the next draft of `length` tokens."""
        return self.delay_s + length * self.draft_s

    def tokens(self, length: int) -> float:
        """Expected tokens of a round: those accepted of a draft of `length`, and the target's own."""
        if length == 0:
            return 1.0
        later = self.later
        run = length if later >= 1 else (1 - later**length) / (1 - later)
        return 1 + self.first * run


@dataclass
class DraftEstimate:
    """A running forecast of one device."""

    forecast: Forecast = Forecast()  # at first a guess
    everybody: DraftEstimate | None = None  # learns the quality of all devices' drafts, for strangers yet to come
    _first: _Chance = field(init=False)
    _later: _Chance = field(init=False)

    def __post_init__(self) -> None:
        self._first, self._later = _Chance(self.forecast.first), _Chance(self.forecast.later)

    @property
    def drafts(self) -> int:
        """How many have arrived."""
        return self.forecast.drafts

    def arrived(self, away_s: float, length: int, drafting_s: float) -> None:
        """A draft of `length` >= 1 tokens came `away_s` after the verdict before it; the device says it took
        `drafting_s` of that to draft it, 0 = it does not say."""
        old = self.forecast
        weight = SMOOTHING if old.drafts else 1.0
        spent = min(drafting_s or length * old.draft_s, away_s)
        jitter_s = away_s / 4  # until a second one shows how regular they are
        if old.drafts:
            jitter_s = old.jitter_s + SMOOTHING * (abs(away_s - old.away_s(length)) - old.jitter_s)
        self.forecast = old._replace(
            delay_s=old.delay_s + weight * (away_s - spent - old.delay_s),
            draft_s=old.draft_s + weight * (spent / length - old.draft_s),
            jitter_s=jitter_s,
            drafts=old.drafts + 1,
        )

    def judged(self, length: int, accepted: int) -> None:
        """The target looked at a draft of `length` tokens and accepted so many."""
        if not length:
            return
        self._first.add(accepted > 0, 1)
        self._later.add(max(0, accepted - 1), min(length - 1, accepted))
        self.forecast = self.forecast._replace(
            first=self._first.mean, later=self._later.mean, tested=self._first.seen + self._later.seen
        )
        if self.everybody is not None:
            self.everybody.judged(length, accepted)


class _Chance:
    """A running share of successes, which begins as a guess and forgets slowly."""

    def __init__(self, guess: float) -> None:
        self._good, self._all, self.seen = guess * BELIEF, BELIEF, 0.0

    def add(self, good: float, all: float) -> None:
        keep = 0.5 ** (all / MEMORY)
        self._good = self._good * keep + good
        self._all = self._all * keep + all
        self.seen = self.seen * keep + all

    @property
    def mean(self) -> float:
        return self._good / self._all


class DeviceBook:
    """Estimates by the name a device has given itself, of the MOST_DEVICES devices heard of last.

    A device that is heard of for the first time is taken for one like all others together.
    """

    def __init__(self) -> None:
        self._everybody = DraftEstimate()
        self._devices: OrderedDict[tuple[str, str], DraftEstimate] = OrderedDict()

    def of(self, tenant: str, device: str) -> DraftEstimate:
        """The estimate of a tenant's device; "" = one without a name, which gets an estimate of its own."""
        found = self._devices.pop((tenant, device), None) or DraftEstimate(self._guess(), self._everybody)
        if device:
            self._devices[tenant, device] = found
            if len(self._devices) > MOST_DEVICES:
                self._devices.popitem(last=False)
        return found

    def _guess(self) -> Forecast:
        """Their quality only: how fast they are says nothing of a stranger."""
        known = self._everybody.forecast
        return Forecast(first=known.first, later=known.later)
