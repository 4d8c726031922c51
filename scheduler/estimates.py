"""Estimates about the drafts of each device: acceptance, times, and how regularly drafts arrive.

Pure: the caller reports each event with its duration in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hw_profiles.fading import FadingRatio, remaining_share
from opensled.core.messages import Why
from scheduler.confidences import UNTOLD, ConfidenceCalibration

# Weights and half-lives in draft tokens. They are chosen: the usual acceptance of a device outweighs that of a single
# sequence for its first dozens of tokens, because texts differ less than luck does.
USUAL = 30.0  # weight of the device's usual acceptance against that of the sequence
PRIOR = 8.0  # weight of the guess about an unknown device
SEQUENCE, DEVICE, TENANT = 64.0, 256.0, 2048.0  # half-lives of observations of each
OF_DEVICE, OF_TENANT = 8, 33  # number of drafts in a mean of times: drafts made ahead are a part of them
OUTAGE = 2.0  # a draft counts with at most this multiple of its usual time away plus that of an unknown link
BESIDE = 64.0  # steps with two drafts after which an observation counts half
OFFERED = 256.0  # drafts requested by a tenant after which an observation counts half
LEAST = 0.01  # minimum chance in comparisons
MAX_DEVICES = 4096  # maximum devices of a tenant that are remembered by name: bounds the memory of a server


class Forecast(NamedTuple):
    """The forecast for a device's next draft. Times are in seconds.

    The defaults describe an unknown device: a small draft model on a board behind Wi-Fi.
    """

    first: float = 0.65  # chance that its first token is accepted
    later: float = 0.75  # chance of each token after an accepted one
    delay_s: float = 0.1  # from the departure of a verdict to the next draft, without the drafting itself
    draft_s: float = 0.02  # to draft one token
    jitter_s: float = 0.05  # mean deviation of its arrival from the forecast
    drafts: int = 0  # number of drafts that have arrived; 0 = the times are guesses
    # Accepted tokens that a second draft adds to the first one, as a share of those that it would add if both were
    # independent; 0 if they always agree
    apart: float = 0.0
    rested: int = 0  # answers that it began at rest since it was last tried, this one included

    def away_s(self, length: int) -> float:
        """Seconds from the departure of a verdict to the arrival of the next draft, of `length` tokens."""
        return self.delay_s + length * self.draft_s


GUESS = Forecast()  # for an unknown device


class DraftAcceptance:
    """Acceptance: fading chances of a draft's first token, and of tokens after an accepted one."""

    __slots__ = ("_firsts", "_half_life", "_laters", "first", "later")

    def __init__(self, first: float, later: float, weight: float, half_life: float) -> None:
        """Starts as a guess with the weight of `weight` draft tokens."""
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
        """Both chances, with `usual` at the weight of USUAL draft tokens."""
        firsts, laters = self._firsts, self._laters
        first = (self.first * firsts + usual.first * USUAL) / (firsts + USUAL)
        return first, (self.later * laters + usual.later * USUAL) / (laters + USUAL)


class DeviceEstimate:
    """Estimates about one device: its usual acceptance, and how long its drafts are away.

    Times are fading means. They include rare cases, such as drafts made while the verdict was in transit. A long outage
    counts as OUTAGE, because it says little about the next draft.
    """

    def __init__(self, guess: Forecast = GUESS, tenant: DeviceEstimate | None = None) -> None:
        """`tenant`: estimate of the mean device of its tenant, which also learns from this one; None = this is one."""
        half_life, self._window = (DEVICE, OF_DEVICE) if tenant else (TENANT, OF_TENANT)
        self.acceptance = DraftAcceptance(guess.first, guess.later, PRIOR, half_life)
        self.delay_s, self.draft_s, self.jitter_s = guess.delay_s, guess.draft_s, guess.jitter_s
        self.drafts = guess.drafts
        # The latest one given to any of its sequences, and the reason of a 0
        self.hint: int | None = None
        self.why: Why = None
        self.confidences: ConfidenceCalibration = ConfidenceCalibration(
            tenant.confidences if tenant else None
        )
        # Of the tokens that all sequences of the tenant have asked the server's drafter for, those that it proposed
        self.offered: FadingRatio = tenant.offered if tenant else FadingRatio(OFFERED, PRIOR, PRIOR)
        # Answers begun at rest since four drafts have come, and drafts since then
        self.rested = self._tried = 0
        self._tenant = tenant
        self._beside = FadingRatio(BESIDE, guess.apart, 1.0)

    @property
    def usual(self) -> DraftAcceptance:
        """Of the mean device of its tenant."""
        return self.acceptance if self._tenant is None else self._tenant.acceptance

    def add_arrival(self, away_s: float, length: int, drafting_s: float) -> None:
        """A draft of `length` >= 1 tokens arrived `away_s` seconds after the previous verdict left. The device reports
        `drafting_s` seconds of drafting; 0 = it reports none."""
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

    def add_draft(self) -> None:
        """A draft has come, however late."""
        self._tried += 1
        if self._tried >= 4:  # of 4 tokens each in a probe; chosen
            self.rested = self._tried = 0

    def add_verdict(self, length: int, accepted: int, unseen: Sequence[float] = ()) -> None:
        """See `DraftEstimate.add_verdict`."""
        self.acceptance.add_verdict(length, accepted, unseen)
        if self._tenant is not None:
            self._tenant.add_verdict(length, accepted, unseen)

    def add_second_draft(self, added: int, independent: float) -> None:
        """A second draft has added so many accepted tokens to those of the first; see `Forecast.apart`."""
        self._beside.add(added, independent)
        if self._tenant is not None:
            self._tenant.add_second_draft(added, independent)

    def another(self) -> DeviceEstimate:
        """The estimate of a new device of this tenant, which is assumed to be like the others."""
        known = self.forecast(self.acceptance.first, self.acceptance.later)
        return DeviceEstimate(known._replace(drafts=0), self)

    def forecast(self, first: float, later: float) -> Forecast:
        """The forecast for the next draft of a sequence with these chances."""
        times = self.delay_s, self.draft_s, self.jitter_s
        return Forecast(first, later, *times, self.drafts, self._beside.ratio, self.rested)


class DraftEstimate:
    """A running forecast of one sequence's drafts: the times of its device, and its own acceptance."""

    def __init__(self, device: DeviceEstimate | None = None) -> None:
        self.device = device or DeviceEstimate(tenant=DeviceEstimate())
        self._acceptance = DraftAcceptance(0.0, 0.0, 0.0, SEQUENCE)
        self._forecast: Forecast | None = None  # None: something was learned since

    @property
    def drafts(self) -> int:
        """The number of drafts that have arrived from the device."""
        return self.device.drafts

    @property
    def forecast(self) -> Forecast:
        """Computed on demand: a round has three observations and one request for the forecast."""
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
        """The target accepted the first `accepted` of the `length` draft tokens that it verified. `tried`: see
        `ConfidenceCalibration.add_verdict`. `unseen`: for each further token, which was not verified, the chance that
        it and those before it are accepted if the verified ones are. Without `unseen`, a long draft of which only the
        likely half is verified would look as good as that half."""
        if length:
            self.device.add_verdict(length, accepted, unseen)
            self._acceptance.add_verdict(length, accepted, unseen)
            self.device.confidences.add_verdict(tried)
            self._forecast = None

    def follow(self, other: DraftEstimate) -> None:
        """Follow the `other` estimate while this drafter rests: the text is as much harder than usual for both.
        Otherwise an easy or a hard text would look like a difference between the two drafters."""
        self._forecast = None
        usual, others, now = self.device.acceptance, other.device.usual, other.forecast
        first = min(1.0, usual.first * now.first / max(LEAST, others.first))
        later = min(1.0, usual.later * now.later / max(LEAST, others.later))
        self._forecast = self.forecast._replace(first=first, later=later)

    def reach(self, confidences: Sequence[float], parents: Sequence[int] = ()) -> tuple[float, ...]:
        """Survival chances: for each draft token, the chance that it and all before it are accepted; () = the drafter
        gives no confidences.

        `parents`: those of a tree (`DraftBlock`); () = a chain.
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
    """Estimates by device name, for the latest MAX_DEVICES devices of each tenant.

    A new device is assumed to be like the others of its tenant. Tenants learn nothing from each other.
    """

    def __init__(self, guess: Forecast = GUESS) -> None:
        """`guess`: the forecast for the first device of a tenant."""
        self._guess = guess
        self._tenants: dict[str, DeviceEstimate] = {}  # the mean device of each
        self._devices: dict[str, OrderedDict[str, DeviceEstimate]] = {}

    def known(self, tenant: str, device: str) -> DeviceEstimate | None:
        """The estimate of a tenant's device; None = there is none, or the device has no name."""
        devices = self._devices.get(tenant)
        return devices.get(device) if devices else None

    def of(self, tenant: str, device: str) -> DraftEstimate:
        """The estimate of a new sequence from a tenant's device; "" = a device without a name, always a new one."""
        mean = self._tenants.setdefault(tenant, DeviceEstimate(self._guess))
        devices = self._devices.setdefault(tenant, OrderedDict())
        found = devices.pop(device, None) or mean.another()
        found.rested += found.hint == 0
        if device:
            devices[device] = found
            if len(devices) > MAX_DEVICES:
                devices.popitem(last=False)
        return DraftEstimate(found)
