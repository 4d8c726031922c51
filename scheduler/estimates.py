"""What a server learns of each device's drafts: how good they are, how fast they come, and how regularly.

Pure: the caller says what happened, and how many seconds it took on its clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hw_profiles.fading import FadingRatio, RunningMedian, kept
from scheduler.confidences import UNTOLD, ConfidenceCalibration

# Weights and half-lives in draft tokens. They are chosen: a device's usual acceptance outweighs a sequence's own for
# its first dozens of tokens, for texts differ less than luck does.
USUAL = 30.0  # for which the usual acceptance of its device counts beside a sequence's own
PRIOR = 8.0  # for which the guess about an unknown device counts
SEQUENCE, DEVICE, TENANT = 64.0, 256.0, 2048.0  # half-lives of what is learned of each
OF_DEVICE, OF_TENANT = 9, 33  # latest drafts whose times count: odd, so that medians are values
CONTINUED = 16.0  # drafts that stand whole after which half of what they show of continuations is forgotten
BESIDE = 64.0  # steps with two drafts after which half of what they show is forgotten
LEAST = 0.01  # chance below which nothing is compared
MOST_DEVICES = 4096  # of a tenant that are remembered by name: bounds the memory of a server


class Forecast(NamedTuple):
    """What is expected of a device's next draft. Times in seconds.

    The defaults are assumed of an unknown device: a small draft model on a board behind Wi-Fi.
    """

    first: float = 0.65  # chance that its first token is accepted
    later: float = 0.75  # chance of each token after an accepted one
    delay_s: float = 0.1  # from a verdict that leaves to the draft that follows, without the drafting itself
    draft_s: float = 0.02  # to draft one token
    jitter_s: float = 0.05  # median deviation of its arrival from that
    drafts: int = 0  # that have arrived; 0 = the times are guesses
    # Of the latest draft, which may be shorter than its hint; None = none has arrived
    length: int | None = None
    # Chance that the draft after one that stands whole was sent on before the verdict, and follows the text
    continued: float = 0.0
    # Of a second draft beside another one: tokens that it adds to what stands, as a share of those that it would add if
    # neither knew of the other; two that always agree add none
    apart: float = 0.0

    def away_s(self, length: int) -> float:
        """From a verdict that leaves to the arrival of the next draft of `length` tokens."""
        return self.delay_s + length * self.draft_s


GUESS = Forecast()  # of an unknown device


class DraftAcceptance:
    """Fading chances of a draft's first token, and of tokens after an accepted one."""

    __slots__ = ("_half_life", "_weights", "first", "later")

    def __init__(self, first: float, later: float, weight: float, half_life: float) -> None:
        """Begins as a guess that counts for `weight` draft tokens."""
        self.first, self.later = first, later
        self._half_life, self._weights = half_life, (weight, weight)

    def judged(self, length: int, accepted: int) -> None:
        """The target accepted the first `accepted` of a draft's `length` >= 1 tokens."""
        tries = min(length - 1, accepted)
        keep = kept(1 + tries, self._half_life)
        firsts, laters = self._weights[0] * keep, self._weights[1] * keep
        self.first = (self.first * firsts + (accepted > 0)) / (firsts + 1)
        if tries:
            self.later = (self.later * laters + accepted - 1) / (laters + tries)
        self._weights = firsts + 1, laters + tries

    def beside(self, usual: DraftAcceptance) -> tuple[float, float]:
        """Both chances, where `usual` counts for USUAL draft tokens beside what was seen here."""
        firsts, laters = self._weights
        first = (self.first * firsts + usual.first * USUAL) / (firsts + USUAL)
        return first, (self.later * laters + usual.later * USUAL) / (laters + USUAL)


class DeviceEstimate:
    """What is known of one device: how good its drafts are on the whole, and how long they are away.

    Times are medians over the latest drafts: a link's rare long delays say little of the next one.
    """

    def __init__(self, guess: Forecast = GUESS, tenant: DeviceEstimate | None = None) -> None:
        """`tenant`: the mean device of its tenant, which learns from this one; None = this is one."""
        half_life, window = (DEVICE, OF_DEVICE) if tenant else (TENANT, OF_TENANT)
        self.acceptance = DraftAcceptance(guess.first, guess.later, PRIOR, half_life)
        self.times = guess  # its chances are those of `acceptance`, not of this
        self.hint: int | None = None  # the latest one given to any of its sequences
        self.confidences: ConfidenceCalibration = ConfidenceCalibration(
            tenant.confidences if tenant else None
        )
        self._tenant = tenant
        # Seconds of delay, to draft one token, and of deviation, of the latest drafts
        self._delay_s, self._draft_s, self._jitter_s = (RunningMedian(window) for _ in range(3))
        self._continued = FadingRatio(CONTINUED, guess.continued, 1.0)
        self._beside = FadingRatio(BESIDE, guess.apart, 1.0)

    @property
    def usual(self) -> DraftAcceptance:
        """Of the mean device of its tenant."""
        return self.acceptance if self._tenant is None else self._tenant.acceptance

    def arrived(self, away_s: float, length: int, drafting_s: float) -> None:
        """A draft of `length` >= 1 tokens came `away_s` after the verdict before it; the device says it took
        `drafting_s` of that to draft it, 0 = it does not say."""
        before, drafts = self.times, self.times.drafts + 1
        spent = min(drafting_s or length * before.draft_s, away_s)
        draft_s, delay_s = self._draft_s.add(spent / length), self._delay_s.add(away_s - spent)
        # The first draft shows no deviation.
        missed = abs(away_s - delay_s - length * draft_s) if drafts > 1 else away_s / 4
        jitter_s = self._jitter_s.add(missed)
        self.times = before._replace(
            delay_s=delay_s, draft_s=draft_s, jitter_s=jitter_s, drafts=drafts, length=length
        )
        if self._tenant is not None:
            self._tenant.arrived(away_s, length, drafting_s)

    def judged(self, length: int, accepted: int) -> None:
        self.acceptance.judged(length, accepted)
        if self._tenant is not None:
            self._tenant.judged(length, accepted)

    def continued(self, stands: bool) -> None:
        """Whether a draft that stood whole was followed by one that had been sent on, and that follows the text."""
        self._continued.add(stands, 1)
        self.times = self.times._replace(continued=self._continued.ratio)
        if self._tenant is not None:
            self._tenant.continued(stands)

    def beside(self, added: int, independent: float) -> None:
        """A second draft has `added` so many tokens to what stands of the first; see `Forecast.apart`."""
        self._beside.add(added, independent)
        self.times = self.times._replace(apart=self._beside.ratio)
        if self._tenant is not None:
            self._tenant.beside(added, independent)

    def another(self) -> DeviceEstimate:
        """Of a new device of this tenant, which is assumed to be like the others."""
        first, later = self.acceptance.first, self.acceptance.later
        return DeviceEstimate(self.times._replace(first=first, later=later, drafts=0, length=None), self)


class DraftEstimate:
    """A running forecast of one sequence's drafts: times of its device, and an acceptance of its own."""

    def __init__(self, device: DeviceEstimate | None = None) -> None:
        self.device = device or DeviceEstimate(tenant=DeviceEstimate())
        self._acceptance = DraftAcceptance(0.0, 0.0, 0.0, SEQUENCE)
        self.forecast = self._forecast()

    @property
    def drafts(self) -> int:
        """How many of the device have arrived."""
        return self.device.times.drafts

    def arrived(self, away_s: float, length: int, drafting_s: float) -> None:
        self.device.arrived(away_s, length, drafting_s)
        self.forecast = self._forecast()

    def continued(self, stands: bool) -> None:
        """See `DeviceEstimate.continued`."""
        self.device.continued(stands)
        self.forecast = self._forecast()

    def beside(self, added: int, independent: float) -> None:
        """See `DeviceEstimate.beside`."""
        self.device.beside(added, independent)
        self.forecast = self._forecast()

    def judged(self, length: int, accepted: int, tried: Iterable[tuple[float, bool]] = ()) -> None:
        """The target accepted the first `accepted` of a draft's `length` tokens; `tried`: see its calibration."""
        if length:
            self.device.judged(length, accepted)
            self._acceptance.judged(length, accepted)
            self.device.confidences.judged(tried)
            self.forecast = self._forecast()

    def follow(self, other: DraftEstimate) -> None:
        """While the drafter of this rests: the text is as much harder than usual for it as for the `other`, which
        drafts. Else an easy or a hard text would look like a difference between the two."""
        usual, others, now = self.device.acceptance, other.device.usual, other.forecast
        first = min(1.0, usual.first * now.first / max(LEAST, others.first))
        later = min(1.0, usual.later * now.later / max(LEAST, others.later))
        self.forecast = self._forecast()._replace(first=first, later=later)

    def reach(self, confidences: Sequence[float], parents: Sequence[int] = ()) -> tuple[float, ...]:
        """For each token of a draft the chance that it stands with all before it; () = of no token its drafter says.

        `parents`: of a tree (`DraftBlock`); () = a chain.
        """
        if all(confidence >= UNTOLD for confidence in confidences):
            return ()
        first, later = self.forecast.first, self.forecast.later
        chance, found = self.device.confidences.chance, list[float]()
        for place, confidence in enumerate(confidences):
            parent = parents[place] if parents else place - 1
            usual = first if parent < 0 else later
            step = usual if confidence >= UNTOLD else chance(confidence)
            found.append(step if parent < 0 else step * found[parent])
        return tuple(found)

    def _forecast(self) -> Forecast:
        first, later = self._acceptance.beside(self.device.acceptance)
        return Forecast(first, later, *self.device.times[2:])


class DeviceBook:
    """Estimates by the name that a device has given itself, of the latest MOST_DEVICES devices of each tenant.

    A new device is assumed to be like the others of its tenant; tenants learn nothing of each other.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, DeviceEstimate] = {}  # the mean device of each
        self._devices: dict[str, OrderedDict[str, DeviceEstimate]] = {}

    def of(self, tenant: str, device: str) -> DraftEstimate:
        """The estimate of a new sequence from a tenant's device; "" = a device without a name, always a new one."""
        mean = self._tenants.setdefault(tenant, DeviceEstimate())
        devices = self._devices.setdefault(tenant, OrderedDict())
        found = devices.pop(device, None) or mean.another()
        if device:
            devices[device] = found
            if len(devices) > MOST_DEVICES:
                devices.popitem(last=False)
        return DraftEstimate(found)
