"""The types of scheduling: the snapshot that a policy gets, and the plan that it returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Why
from scheduler.estimates import Forecast

MAX_DRAFT = 16  # default maximum length of a draft block, in tokens


@dataclass(slots=True)  # frozen ones take three times as long to make; tuples, to read
class OfferView:
    """One source of drafts as a policy sees it: the draft that waits, and the forecast for the next one. Lengths are in
    tokens, times in seconds on the caller's clock. It never changes."""

    tokens: int | None = None  # size of the waiting draft with all branches of a tree; None = none waits
    forecast: Forecast | None = None  # for its next draft; None = no drafter, or it has not drafted yet
    longest: int = MAX_DRAFT  # maximum length that it may be asked for; 0 = its drafts are not verified
    depth: int = 0  # length of the longest path if the waiting draft is a tree; 0 = it is a chain
    # For each token of that draft, the chance that it and all before it are accepted; () = the drafter gives none
    reach: tuple[float, ...] = ()
    least: int = 0  # tokens of its drafts where the rule needs long ones, all or nothing; 0 = any
    hint: int | None = None  # the latest hint that was sent to the device
    # When the verdict left after which the device now drafts; it stays while the server decodes. -inf = the device
    # rested until then, and may have to read a long text first.
    asked_since: float = 0.0
    share: float = 1.0  # tokens that it proposes / tokens that it is asked for
    unread: int = 0  # tokens of the text that it must read first


NO_OFFER = OfferView(longest=0)  # there is no drafter


@dataclass(slots=True)
class SessionView:
    """One session as a policy sees it. Lengths are in tokens, times in seconds on the caller's clock.

    A view never changes. A session that has not changed has the same view in the next snapshot.
    """

    id: int
    uncomputed: int  # committed tokens whose KV is missing, >= 1: the newest one always is
    server_drives: bool  # the server decodes it without waiting, since no draft is expected
    waiting_since: float  # when its last verdict left
    device: OfferView  # drafts of its device
    server: OfferView  # the one of `servers` whose draft waits
    servers: tuple[OfferView, ...] = ()  # the server's drafters
    paused: bool = False  # the reader is slow: compute only answers to drafts until it catches up
    absent: bool = False  # the reader is gone: compute nothing until one comes back
    context: int = 0  # KV positions that a step over it reads, without those it computes
    ready_since: float = 0.0  # when its device's draft came, or else when its last verdict left
    pace: float = 0.0  # tokens/s guaranteed to its user; 0 = none
    due: float = inf  # when its next token must leave to keep that pace
    background: bool = False  # low priority
    left: int = 1 << 30  # tokens that it may still write
    # Its answer is long and only the context ends it, so shorter answers have priority
    runs_on: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The server at the moment of planning; sessions in order of arrival."""

    sessions: tuple[SessionView, ...]
    memory: object = None  # `BatchPlan.memory` of the policy's last plan


@dataclass(slots=True)
class Slice:
    """Compute the next `tokens` uncomputed committed tokens of a session. With `decide`, also verify its waiting drafts
    and commit the target's tokens. Without `decide` it is a chunk of a prompt, which excludes the newest token."""

    session: int
    tokens: int
    decide: bool
    ahead: bool = False  # no reader waits for it yet: use free KV blocks only
    padding: int = 0  # positions without use, which make all slices of a static batch equally long
    # Maximum number of the device's draft tokens to verify, the first ones of a tree; None = all
    draft: int | None = None
    # Sent with the verdict: maximum useful length of the next draft (depth of a tree); 0 = do not draft, None = no hint
    hint: int | None = None
    own: int | None = None  # maximum number of server draft tokens to verify; None = all
    ask: int = 0  # maximum number of tokens that a drafter of the server drafts after this step,
    drafter: int = 0  # this one of them
    why: Why = None  # of a hint of 0 that the device has not heard yet


def fitting(offer: OfferView, room: int) -> int | None:
    """The value of `Slice.draft` or `Slice.own` in a step with `room` tokens left; None = the whole draft fits."""
    return room if room < (offer.tokens or 0) else None


def may_decide(session: SessionView, draft_wait: float, now: float) -> bool:
    """Whether a token may be written for it; it waits for its device at most `draft_wait` seconds after a verdict."""
    if session.absent or session.device.tokens is not None:
        return not session.absent
    return not session.paused and (session.server_drives or now >= session.waiting_since + draft_wait)


def end_of_waits(sessions: Sequence[SessionView], draft_wait: float, now: float) -> float:
    """When `may_decide` becomes true of the next session; infinity = not by time alone."""
    waits = [
        session.waiting_since + draft_wait
        for session in sessions
        if not (session.absent or session.paused or session.server_drives) and session.device.tokens is None
    ]
    return min([wait for wait in waits if wait > now], default=inf)


@dataclass(frozen=True)
class BatchPlan:
    """The next step. If none of it can be computed, the server sleeps until an arrival or until `wake_at` (infinity =
    until an arrival)."""

    slices: tuple[Slice, ...] = ()
    wake_at: float = inf
    memory: object = None  # for the next snapshot: policies have no state of their own


class PolicyOptions(NamedTuple):
    """The server's options for policies. The class method `of` of a policy takes those that it needs."""

    draft_wait: float  # maximum seconds to wait for a device before the server decodes one token
    batch: int = 0  # number of drafts that policy `static` collects; 0 = one of every session
    server_draft: int = 4  # length of server drafts under policy `fcfs`, in tokens


class SchedulingPolicy(Protocol):
    """Decides what one step computes. Pure: the same arguments give the same plan.

    A plan never has more positions than `profile.max_step_tokens`: level exact is tested at load up to that size.
    """

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan: ...
