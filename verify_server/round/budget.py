"""The budget of draft tokens that the target verifies: the tenant's quota, a minimum acceptance, the operator's switch,
and riders for which drafts are of no use.

A session whose drafts are not verified is decoded token by token, like one without a device; its answer goes on.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Protocol

from hw_profiles.fading import remaining_share
from opensled.metrics.registry import DraftCounts
from verify_server.access.security import Tenants

# All chosen: a device is judged after a few seconds of drafts, and gets a new chance about once per answer.
BURST = 2.0  # maximum seconds of a quota that can be saved up
RESUMED = 0.5  # seconds of a quota that must be available again after exhaustion
EVIDENCE = 16  # verified drafts before a device is judged
HALF_LIFE = 32.0  # drafts after which an observation counts half
MAX_DEVICES = 4096  # maximum number of records
KEEP = remaining_share(1, HALF_LIFE)  # of that weight with each draft
RETURN = 4  # draft tokens of the hint after a rest, if the policy gives none
MIN_ACCEPTANCE = 0.05  # share of a device's drafts with an accepted token, below which they are ignored
PROBE = 64  # tokens after which one more draft of a device below the floor is verified


class Quota:
    """A token bucket of verified draft tokens of one tenant, accepted or not."""

    def __init__(self, per_second: float, now: float) -> None:
        self.per_second, self._since = per_second, now
        self._left = self._most = max(1.0, BURST * per_second)
        self._good_again = min(self._most, max(1.0, RESUMED * per_second))
        self._exhausted = False

    def tokens_left(self, now: float) -> int:
        """The number of tokens that may be verified now."""
        self._refill(now)
        return 0 if self._exhausted else ceil(self._left)

    def take(self, tokens: int, now: float) -> None:
        """Verify `tokens` more."""
        self._refill(now)
        self._left -= tokens
        self._exhausted = self._exhausted or self._left <= 0

    def wait(self, now: float) -> float:
        """Seconds until an exhausted quota is available again; 0 = it is available."""
        self._refill(now)
        return (self._good_again - self._left) / self.per_second if self._exhausted else 0.0

    def _refill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._since) * self.per_second)
        self._since = now
        if self._left >= self._good_again:
            self._exhausted = False


class Quotas:
    """The quotas of tenants, from their first session on."""

    def __init__(self, tenants: Tenants, clock: Callable[[], float]) -> None:
        self._tenants, self._clock = tenants, clock
        self._quotas: dict[str, Quota] = {}

    def of(self, tenant: str) -> Quota | None:
        per_second = self._tenants.limits_of(tenant).positions_per_s
        known = self._quotas.get(tenant)
        if (known.per_second if known else 0) != per_second:  # the token file may have been changed
            self._quotas.pop(tenant, None)
            if per_second:
                self._quotas[tenant] = Quota(per_second, self._clock())
        return self._quotas.get(tenant)

    def wait(self, tenant: str) -> float:
        """Seconds until drafts of a tenant are verified again; 0 = now."""
        quota = self.of(tenant)
        return quota.wait(self._clock()) if quota else 0.0


@dataclass
class DraftRecord:
    """How many drafts of a device gained a token (older ones count less), and the counts that operators see."""

    verified: float = 0.0  # verified drafts
    gained: float = 0.0  # verified drafts with an accepted token
    counts: DraftCounts = field(default_factory=DraftCounts)  # all verified drafts
    tokens: int = 0  # committed tokens, with a draft or without
    opened_at: float = 0.0  # when its latest sequence was opened, on the server's clock
    drafting: bool = True  # False = an operator has switched its drafts off

    def add(self, tokens: int, accepted: int) -> None:
        """The target verified another draft of `tokens` tokens, and accepted `accepted` of them."""
        self.verified = self.verified * KEEP + 1
        self.gained = self.gained * KEEP + (accepted > 0)
        self.counts.add(tokens, accepted)

    def is_below(self, floor: float) -> bool:
        return self.verified >= EVIDENCE and self.gained < floor * self.verified


class DraftRecords:
    """Records by tenant and device name; a tenant's devices without a name share one record."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[tuple[str, str], DraftRecord] = OrderedDict()

    def of(self, tenant: str, device: str) -> DraftRecord:
        """The record for a new sequence."""
        found = self._records.setdefault((tenant, device), DraftRecord())
        found.opened_at = self._clock()
        self._records.move_to_end((tenant, device))
        if len(self._records) > MAX_DEVICES:
            self._records.popitem(last=False)
        return found

    def latest(self) -> list[tuple[str, str, DraftRecord]]:
        """All records, with tenant and name; the device whose sequence was opened last comes first."""
        return [(tenant, device, record) for (tenant, device), record in reversed(self._records.items())]

    def known(self, tenant: str, device: str) -> DraftRecord | None:
        return self._records.get((tenant, device))


class TakesDrafts(Protocol):
    """The part of a `Rider` that decides about drafts."""

    @property
    def takes_drafts(self) -> bool: ...


@dataclass
class DraftBudget:
    """The budget of one source in a session, under every policy."""

    quota: Quota | None = None  # quota of its tenant; None = no limit
    record: DraftRecord = field(default_factory=DraftRecord)  # record of its device
    floor: float = 0.0  # minimum share of drafts that gain a token; below it they are ignored
    verified_at: int = 0  # length of the session when a draft was last verified, in tokens
    resting: bool = False  # the last hint to its device was 0, for lack of budget
    riders: Sequence[TakesDrafts] = ()  # riders of the session

    def cause(self, length: int) -> str:
        """Why nothing is verified in a session of `length` tokens (see `HintReason`); "" = only a quota bounds it."""
        if not self.record.drafting:
            return "operator"
        if self.riders and not self._are_of_use:
            return "request"
        rejected = length < self.verified_at + PROBE and self.record.is_below(self.floor)
        return "rejected" if rejected else ""

    def longest(self, wanted: int, length: int, now: float) -> int:
        """The maximum number of tokens verified now of a draft of `wanted` tokens, in a session of `length` tokens."""
        if self.cause(length):
            return 0
        return wanted if self.quota is None else min(wanted, self.quota.tokens_left(now))

    def take(self, tokens: int, length: int, now: float) -> None:
        """Verify this many draft tokens of a session of `length` tokens."""
        if tokens:
            self.verified_at = length
            if self.quota is not None:
                self.quota.take(tokens, now)

    def add_verdict(self, tokens: int, accepted: int, committed: int) -> None:
        """The target accepted `accepted` of the `tokens` verified tokens, and committed `committed` in all."""
        self.record.tokens += committed
        if tokens:
            self.record.add(tokens, accepted)

    def hint(self, advice: int | None, longest: int) -> int | None:
        """The hint for the device: the policy's `advice`, limited by the maximum length that is verified."""
        rested, self.resting = self.resting, not longest
        if advice is None:
            return min(RETURN, longest) if rested or self.resting else None
        return min(advice, longest)

    @property
    def _are_of_use(self) -> bool:
        return all(rider.takes_drafts for rider in self.riders)
