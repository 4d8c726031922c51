"""How much of a device's drafts the target verifies: its tenant's quota, and a floor under which drafts are ignored.

A session whose drafts are not verified is decoded token by token, like one without a device; its answer goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil

from hw_profiles.fading import kept
from verify_server.security import Tenants

BURST = 2.0  # seconds of a quota that can be saved up
RESUMED = 0.5  # seconds of it that must have come together before an exhausted one is good again
EVIDENCE = 16  # drafts that must have been looked at before a device counts as hopeless
MEMORY = 32.0  # drafts after which half of what they showed is forgotten
MOST_DEVICES = 4096  # of which it is remembered
RETURN = 4  # draft tokens asked for after a rest, where the policy advises nothing
PROBE = 64  # tokens after which one more draft of a hopeless device is looked at


class Quota:
    """Draft tokens that one tenant has verified: so many per second, accepted or not."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second, self._since = per_second, now
        self._left = self._most = max(1.0, BURST * per_second)
        self._good_again = min(self._most, max(1.0, RESUMED * per_second))
        self._exhausted = False

    def left(self, now: float) -> int:
        """Tokens that may be verified now."""
        self._refill(now)
        return 0 if self._exhausted else ceil(self._left)

    def take(self, tokens: int, now: float) -> None:
        """So many are verified."""
        self._refill(now)
        self._left -= tokens
        self._exhausted = self._exhausted or self._left <= 0

    def wait(self, now: float) -> float:
        """Seconds until an exhausted quota is good again; 0 while it is good."""
        self._refill(now)
        return (self._good_again - self._left) / self._per_second if self._exhausted else 0.0

    def _refill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._since) * self._per_second)
        self._since = now
        if self._left >= self._good_again:
            self._exhausted = False


class Quotas:
    """The quota of each tenant that has one, from its first session on."""

    def __init__(self, tenants: Tenants, clock: Callable[[], float]) -> None:
        self._tenants, self._clock = tenants, clock
        self._quotas: dict[str, Quota] = {}

    def of(self, tenant: str) -> Quota | None:
        per_second = self._tenants.limits_of(tenant).positions_per_s
        if per_second and tenant not in self._quotas:
            self._quotas[tenant] = Quota(per_second, self._clock())
        return self._quotas.get(tenant)

    def wait(self, tenant: str) -> float:
        """Seconds until drafts of a tenant are verified again; 0 = they are."""
        quota = self.of(tenant)
        return quota.wait(self._clock()) if quota else 0.0


@dataclass
class DraftRecord:
    """What one device's drafts were worth, the older ones counted less."""

    looked_at: float = 0.0  # drafts of which the target computed something
    gained: float = 0.0  # those of which at least one token was accepted

    def add(self, accepted: int) -> None:
        """The target looked at one more, and accepted so many tokens of it."""
        keep = kept(1, MEMORY)
        self.looked_at = self.looked_at * keep + 1
        self.gained = self.gained * keep + (accepted > 0)

    def is_below(self, floor: float) -> bool:
        return self.looked_at >= EVIDENCE and self.gained < floor * self.looked_at


class DraftRecords:
    """By the name that a device has given itself; a tenant's devices without one share theirs."""

    def __init__(self) -> None:
        self._records: OrderedDict[tuple[str, str], DraftRecord] = OrderedDict()

    def of(self, tenant: str, device: str) -> DraftRecord:
        found = self._records.setdefault((tenant, device), DraftRecord())
        self._records.move_to_end((tenant, device))
        if len(self._records) > MOST_DEVICES:
            self._records.popitem(last=False)
        return found


@dataclass
class DraftBudget:
    """What of one session's drafts is verified. It holds under every policy."""

    quota: Quota | None = None  # of its tenant; None = no limit
    record: DraftRecord = field(default_factory=DraftRecord)  # of its device
    floor: float = 0.0  # share of drafts that gain something, below which its device's are ignored
    looked_at: int = 0  # tokens the session had when a draft of it was last verified
    resting: bool = False  # its device was told to rest for lack of an allowance

    def longest(self, wanted: int, length: int, now: float) -> int:
        """Of a draft of `wanted` tokens, those to verify for a session of `length` tokens now."""
        if length < self.looked_at + PROBE and self.record.is_below(self.floor):
            return 0
        return wanted if self.quota is None else min(wanted, self.quota.left(now))

    def take(self, tokens: int, length: int, now: float) -> None:
        """So many draft tokens of a session of `length` are verified."""
        if tokens:
            self.looked_at = length
            if self.quota is not None:
                self.quota.take(tokens, now)

    def judged(self, tokens: int, accepted: int) -> None:
        """The target accepted so many of the `tokens` that were verified."""
        if tokens:
            self.record.add(accepted)

    def hint(self, advice: int | None, longest: int) -> int | None:
        """What a policy's advice to the device becomes when drafts of `longest` tokens are verified."""
        rested, self.resting = self.resting, not longest
        if advice is None:
            return min(RETURN, longest) if rested or self.resting else None
        return min(advice, longest)
