"""What a server learns of one device's drafts: how good they are, how fast they come, and how regularly.

Pure: whoever keeps an estimate says what happened, and how many seconds it took on his clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from statistics import median_low
from typing import NamedTuple

USUAL = 30.0  # draft tokens of a sequence for which its device's usual quality counts: texts differ, luck does more
STRANGER = 8.0  # the same of what is believed of a device that nobody knows
# Draft tokens after which half of what was learned of their quality is forgotten.
SEQUENCE, DEVICE, EVERYBODY = 64.0, 256.0, 2048.0
OF_DEVICE, OF_EVERYBODY = 9, 33  # latest drafts whose times count
MOST_DEVICES = 4096  # that are remembered by name


class Forecast(NamedTuple):
    """What is expected of a device's next draft. Times in seconds."""

    first: float = 0.65  # chance that its first token is accepted
    later: float = 0.75  # chance of each token after an accepted one
    delay_s: float = 0.1  # from a verdict that leaves to the draft that follows, without the drafting itself
    draft_s: float = 0.02  # to draft one token
    jitter_s: float = 0.05  # how far from that it usually arrives
    drafts: int = 0  # that have arrived: how much the times rest on; 0 = they are guesses
    # Of the latest one, which may be shorter than was hinted; None = none has arrived
    length: int | None = None

    def away_s(self, length: int) -> float:
        """From a verdict that leaves to the arrival of the next draft of `length` tokens."""
        return self.delay_s + length * self.draft_s


GUESS = Forecast()  # of a device of which nothing was seen yet


class Quality:
    """Running chances of a draft's first token and of those after an accepted one."""

    __slots__ = ("_memory", "_weights", "first", "later")

    def __init__(self, first: float, later: float, belief: float, memory: float) -> None:
        """Begins as a guess that counts for `belief` draft tokens; after `memory` of them half is forgotten."""
        self.first, self.later = first, later
        self._memory, self._weights = memory, (belief, belief)

    def judged(self, length: int, accepted: int) -> None:
        """The target looked at a draft of `length` >= 1 tokens and accepted so many."""
        tries = min(length - 1, accepted)
        keep = 0.5 ** ((1 + tries) / self._memory)
        firsts, laters = (weight * keep for weight in self._weights)
        self.first = (self.first * firsts + (accepted > 0)) / (firsts + 1)
        if tries:
            self.later = (self.later * laters + accepted - 1) / (laters + tries)
        self._weights = firsts + 1, laters + tries

    def beside(self, usual: Quality) -> tuple[float, float]:
        """Both chances, where what is `usual` counts for USUAL draft tokens beside what was seen here."""
        firsts, laters = self._weights
        first = (self.first * firsts + usual.first * USUAL) / (firsts + USUAL)
        return first, (self.later * laters + usual.later * USUAL) / (laters + USUAL)


class Times:
    """How long drafts are away: medians over the latest ones, for a link's rare long delays say little of the next."""

    def __init__(self, guess: Forecast, window: int) -> None:
        """`guess` stands until a first draft has come; `window`: how many of the latest ones count."""
        self.delay_s, self.draft_s, self.jitter_s = guess.delay_s, guess.draft_s, guess.jitter_s
        self.drafts = 0
        self.length: int | None = None
        self._delays: deque[float] = deque(maxlen=window)
        self._speeds: deque[float] = deque(maxlen=window)
        self._missed: deque[float] = deque(maxlen=window)

    def arrived(self, away_s: float, length: int, drafting_s: float) -> None:
        """A draft of `length` >= 1 tokens came `away_s` after the verdict before it; the device says it took
        `drafting_s` of that to draft it, 0 = it does not say."""
        spent = min(drafting_s or length * self.draft_s, away_s)
        self._speeds.append(spent / length)
        self._delays.append(away_s - spent)
        self.draft_s, self.delay_s = median_low(self._speeds), median_low(self._delays)
        self.drafts, self.length = self.drafts + 1, length
        # Of the first one nobody knows how regular they will be.
        missed = abs(away_s - self.delay_s - length * self.draft_s) if self.drafts > 1 else away_s / 4
        self._missed.append(missed)
        self.jitter_s = median_low(self._missed)


class DeviceEstimate:
    """What is known of one device: how long its drafts are away, and how good they are on the whole."""

    def __init__(self, guess: Forecast = GUESS, everybody: DeviceEstimate | None = None) -> None:
        """`everybody` learns with it, for strangers yet to come."""
        memory = DEVICE if everybody else EVERYBODY
        self.quality = Quality(guess.first, guess.later, STRANGER, memory)
        self.times = Times(guess, OF_DEVICE if everybody else OF_EVERYBODY)
        self.hint: int | None = None  # the latest one given to any of its sequences
        self._everybody = everybody

    def arrived(self, away_s: float, length: int, drafting_s: float) -> None:
        """See `Times`."""
        self.times.arrived(away_s, length, drafting_s)
        if self._everybody is not None:
            self._everybody.arrived(away_s, length, drafting_s)

    def judged(self, length: int, accepted: int) -> None:
        """See `Quality`."""
        self.quality.judged(length, accepted)
        if self._everybody is not None:
            self._everybody.judged(length, accepted)


class DraftEstimate:
    """A running forecast of one sequence's drafts: times of its device, and a quality that is the text's own."""

    def __init__(self, device: DeviceEstimate | None = None) -> None:
        self.device = device or DeviceEstimate(everybody=DeviceEstimate())
        self._quality = Quality(0.0, 0.0, 0.0, SEQUENCE)
        self.forecast = self._forecast()

    @property
    def drafts(self) -> int:
        """How many of the device have arrived."""
        return self.device.times.drafts

    def arrived(self, away_s: float, length: int, drafting_s: float) -> None:
        """See `DeviceEstimate`."""
        self.device.arrived(away_s, length, drafting_s)
        self.forecast = self._forecast()

    def judged(self, length: int, accepted: int) -> None:
        """The target looked at a draft of `length` tokens and accepted so many."""
        if length:
            self.device.judged(length, accepted)
            self._quality.judged(length, accepted)
            self.forecast = self._forecast()

    def _forecast(self) -> Forecast:
        times = self.device.times
        first, later = self._quality.beside(self.device.quality)
        return Forecast(
            first, later, times.delay_s, times.draft_s, times.jitter_s, times.drafts, times.length
        )


class DeviceBook:
    """Estimates by the name a device has given itself, of the MOST_DEVICES devices of each tenant heard of last.

    A device that is heard of for the first time is taken for one like the others of its tenant: what one tenant's
    devices do is no other's business.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Devices] = {}

    def of(self, tenant: str, device: str) -> DraftEstimate:
        """The estimate of a new sequence from a tenant's device; "" = one without a name, a stranger each time."""
        return DraftEstimate(self._tenants.setdefault(tenant, _Devices()).of(device))


class _Devices:
    """Those of one tenant."""

    def __init__(self) -> None:
        self._everybody = DeviceEstimate()
        self._devices: OrderedDict[str, DeviceEstimate] = OrderedDict()

    def of(self, device: str) -> DeviceEstimate:
        found = self._devices.pop(device, None) or self._stranger()
        if device:
            self._devices[device] = found
            if len(self._devices) > MOST_DEVICES:
                self._devices.popitem(last=False)
        return found

    def _stranger(self) -> DeviceEstimate:
        quality, times = self._everybody.quality, self._everybody.times
        guess = Forecast(quality.first, quality.later, times.delay_s, times.draft_s, times.jitter_s)
        return DeviceEstimate(guess, self._everybody)
