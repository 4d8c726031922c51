"""What a server learns of each device's drafts: how good they are, how fast they come, and how regularly.

Pure: the caller says what happened, and how many seconds it took on its clock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hw_profiles.fading import FadingRatio, remaining_share
from scheduler.confidences import UNTOLD, ConfidenceCalibration

# Weights and half-lives in draft tokens. They are chosen: a device's usual acceptance outweighs a sequence's own for
# its first dozens of tokens, for texts differ less than luck does.
USUAL = 30.0  # for which the usual acceptance of its device counts beside a sequence's own
PRIOR = 8.0  # for which the guess about an unknown device counts
SEQUENCE, DEVICE, TENANT = 64.0, 256.0, 2048.0  # half-lives of what is learned of each
OF_DEVICE, OF_TENANT = 8, 33  # drafts over which times are means: drafts made ahead come now and then
OUTAGE = 2.0  # times what is usual, and assumed of a link, that a draft may be away to count in full
BESIDE = 64.0  # steps with two drafts after which half of what they show is forgotten
OFFERED = 256.0  # drafts asked for by a tenant, after which half of what came of them is forgotten
LEAST = 0.01  # chance below which nothing is compared
MAX_DEVICES = 4096  # of a tenant that are remembered by name: bounds the memory of a server


class Forecast(NamedTuple):
    """What is expected of a device's next draft. Times in seconds.

    The defaults are assumed of an unknown device: a small draft model on a board behind Wi-Fi.
    """

    first: float = 0.65  # chance that its first token is accepted
    later: float = 0.75  # chance of each token after an accepted one
    delay_s: float = 0.1  # from a verdict that leaves to the draft that follows, without the drafting itself
    draft_s: float = 0.02  # to draft one token
    jitter_s: float = 0.05  # mean deviation of its arrival from that
    drafts: int = 0  # that have arrived; 0 = the times are guesses
    # Of a second draft beside another one: tokens that it adds to what stands, as a share of those that it would add if
    # neither knew of the other; two that always agree add none
    apart: float = 0.0

    def away_s(self, length: int) -> float:
        """From a verdict that leaves to the arrival of the next draft of `length` tokens."""
        return self.delay_s + length * self.draft_s


GUESS = Forecast()  # of an unknown device


class DraftAcceptance:
    """Fading chances of a draft's first token, and of tokens after an accepted one."""

    __slots__ = ("_firsts", "_half_life", "_laters", "first", "later")

    def __init__(self, first: float, later: float, weight: float, half_life: float) -> None:
        """Begins as a guess that counts for `weight` draft tokens."""
        self.first, self.later = first, later
        self._half_life, self._firsts, self._laters = half_life, weight, weight

    def add_verdict(self, length: int, accepted: int, unseen: Sequence[float] = ()) -> None:
        """The target accepted the first `accepted` of a draft's `length` >= 1 tokens. `unseen`: see `DraftEstimate`."""
        tries, stood = float(min(length - 1, accepted)), max(0.0, accepted - 1.0)
        if unseen and accepted == length:
            tries, stood = tries + 1 + sum(unseen[:-1]), stood + sum(unseen)
        keep = remaining_share(1 + tries, self._half_life)
        firsts, laters = self._firsts * keep, self._laters * keep
        self._firsts, self._laters = firsts + 1, laters + tries
        self.first = (self.first * firsts + (accepted > 0)) / self._firsts
        if tries:
            self.later = (self.later * laters + stood) / self._laters

    def blend(self, usual: DraftAcceptance) -> tuple[float, float]:
        """Both chances, where `usual` counts for USUAL draft tokens beside what was seen here."""
        firsts, laters = self._firsts, self._laters
        first = (self.first * firsts + usual.first * USUAL) / (firsts + USUAL)
        return first, (self.later * laters + usual.later * USUAL) / (laters + USUAL)


class DeviceEstimate:
    """What is known of one device: how good its drafts are on the whole, and how long they are away.

    Times are fading means: they also count what comes now and then, such as drafts that were made while the verdict was
    on its way. A long outage counts as OUTAGE, for it says little of the next draft.
    """

    def __init__(self, guess: Forecast = GUESS, tenant: DeviceEstimate | None = None) -> None:
        """`tenant`: the mean device of its tenant, which learns from this one; None = this is one."""
        half_life, self._window = (DEVICE, OF_DEVICE) if tenant else (TENANT, OF_TENANT)
        self.acceptance = DraftAcceptance(guess.first, guess.later, PRIOR, half_life)
        self.delay_s, self.draft_s, self.jitter_s = guess.delay_s, guess.draft_s, guess.jitter_s
        self.drafts = guess.drafts
        self.hint: int | None = None  # the latest one given to any of its sequences
        self.confidences: ConfidenceCalibration = ConfidenceCalibration(
            tenant.confidences if tenant else None
        )
        # Of the tokens that all sequences of the tenant have asked the server's drafter for, those that it proposed
        self.offered: FadingRatio = tenant.offered if tenant else FadingRatio(OFFERED, PRIOR, PRIOR)
        self._tenant = tenant
        self._beside = FadingRatio(BESIDE, guess.apart, 1.0)

    @property
    def usual(self) -> DraftAcceptance:
        """Of the mean device of its tenant."""
        return self.acceptance if self._tenant is None else self._tenant.acceptance

    def add_arrival(self, away_s: float, length: int, drafting_s: float) -> None:
        """A draft of `length` >= 1 tokens came `away_s` after the verdict before it; the device says it took
        `drafting_s` of that to draft it, 0 = it does not say."""
        self.drafts += 1
        usual_s = self.delay_s + length * self.draft_s
        away_s = min(away_s, OUTAGE * (usual_s + GUESS.delay_s))
        spent_s = min(drafting_s or length * self.draft_s, away_s)
        # The first draft shows no deviation.
        missed_s = abs(away_s - usual_s) if self.drafts > 1 else away_s / 4
        share = 1 / min(self.drafts, self._window)
        self.draft_s += share * (spent_s / length - self.draft_s)
        self.delay_s += share * (away_s - spent_s - self.delay_s)
        self.jitter_s += share * (missed_s - self.jitter_s)
        if self._tenant is not None:
            self._tenant.add_arrival(away_s, length, drafting_s)

    def add_verdict(self, length: int, accepted: int, unseen: Sequence[float] = ()) -> None:
        """See `DraftEstimate.add_verdict`."""
        self.acceptance.add_verdict(length, accepted, unseen)
        if self._tenant is not None:
            self._tenant.add_verdict(length, accepted, unseen)

    def add_second_draft(self, added: int, independent: float) -> None:
        """A second draft has `added` so many tokens to what stands of the first; see `Forecast.apart`."""
        self._beside.add(added, independent)
        if self._tenant is not None:
            self._tenant.add_second_draft(added, independent)

    def another(self) -> DeviceEstimate:
        """Of a new device of this tenant, which is assumed to be like the others."""
        known = self.forecast(self.acceptance.first, self.acceptance.later)
        return DeviceEstimate(known._replace(drafts=0), self)

    def forecast(self, first: float, later: float) -> Forecast:
        """Of the next draft of a sequence with these chances."""
        return Forecast(
            first, later, self.delay_s, self.draft_s, self.jitter_s, self.drafts, self._beside.ratio
        )


class DraftEstimate:
    """A running forecast of one sequence's drafts: times of its device, and an acceptance of its own."""

    def __init__(self, device: DeviceEstimate | None = None) -> None:
        self.device = device or DeviceEstimate(tenant=DeviceEstimate())
        self._acceptance = DraftAcceptance(0.0, 0.0, 0.0, SEQUENCE)
        self._forecast: Forecast | None = None  # None: something was learned since

    @property
    def drafts(self) -> int:
        """How many of the device have arrived."""
        return self.device.drafts

    @property
    def forecast(self) -> Forecast:
        """Made when it is asked for: a round teaches three times, and asks once."""
        if self._forecast is None:
            self._forecast = self.device.forecast(*self._acceptance.blend(self.device.acceptance))
        return self._forecast

    def add_arrival(self, away_s: float, length: int, drafting_s: float) -> None:
        self.device.add_arrival(away_s, length, drafting_s)
        self._forecast = None

    def add_second_draft(self, added: int, independent: float) -> None:
        """See `DeviceEstimate.add_second_draft`."""
        self.device.add_second_draft(added, independent)
        self._forecast = None

    def add_verdict(
        self,
        length: int,
        accepted: int,
        tried: Iterable[tuple[float, bool]] = (),
        unseen: Sequence[float] = (),
    ) -> None:
        """The target accepted the first `accepted` of the `length` tokens of a draft that it has seen; `tried`: see
        their calibration. `unseen`: for each token behind them the chance that it stands, with those between, if they
        do. A server leaves out what is unlikely: without it, a long draft of which it verifies the likely half would
        look as good as that half."""
        if length:
            self.device.add_verdict(length, accepted, unseen)
            self._acceptance.add_verdict(length, accepted, unseen)
            self.device.confidences.add_verdict(tried)
            self._forecast = None

    def follow(self, other: DraftEstimate) -> None:
        """While the drafter of this rests: the text is as much harder than usual for it as for the `other`, which
        drafts. Else an easy or a hard text would look like a difference between the two."""
        self._forecast = None
        usual, others, now = self.device.acceptance, other.device.usual, other.forecast
        first = min(1.0, usual.first * now.first / max(LEAST, others.first))
        later = min(1.0, usual.later * now.later / max(LEAST, others.later))
        self._forecast = self.forecast._replace(first=first, later=later)

    def reach(self, confidences: Sequence[float], parents: Sequence[int] = ()) -> tuple[float, ...]:
        """For each token of a draft the chance that it stands with all before it; () = of no token its drafter says.

        `parents`: of a tree (`DraftBlock`); () = a chain.
        """
        if not confidences or min(confidences) >= UNTOLD:
            return ()
        first, later = self.forecast.first, self.forecast.later
        chance, found = self.device.confidences.chance, list[float]()
        for place, confidence in enumerate(confidences):
            parent = parents[place] if parents else place - 1
            usual = first if parent < 0 else later
            step = usual if confidence >= UNTOLD else chance(confidence)
            found.append(step if parent < 0 else step * found[parent])
        return tuple(found)


class DeviceBook:
    """Estimates by the name that a device has given itself, of the latest MAX_DEVICES devices of each tenant.

    A new device is assumed to be like the others of its tenant; tenants learn nothing of each other.
    """

    def __init__(self, guess: Forecast = GUESS) -> None:
        """`guess`: of the first device of a tenant."""
        self._guess = guess
        self._tenants: dict[str, DeviceEstimate] = {}  # the mean device of each
        self._devices: dict[str, OrderedDict[str, DeviceEstimate]] = {}

    def known(self, tenant: str, device: str) -> DeviceEstimate | None:
        """What is remembered of a tenant's device; None = nothing, or it has no name."""
        devices = self._devices.get(tenant)
        return devices.get(device) if devices else None

    def of(self, tenant: str, device: str) -> DraftEstimate:
        """The estimate of a new sequence from a tenant's device; "" = a device without a name, always a new one."""
        mean = self._tenants.setdefault(tenant, DeviceEstimate(self._guess))
        devices = self._devices.setdefault(tenant, OrderedDict())
        found = devices.pop(device, None) or mean.another()
        if device:
            devices[device] = found
            if len(devices) > MAX_DEVICES:
                devices.popitem(last=False)
        return DraftEstimate(found)
