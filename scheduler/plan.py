"""The types of scheduling: what a policy sees, and what it answers."""

from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from hw_profiles.step_cost import HardwareProfile
from scheduler.estimates import Forecast

MAX_DRAFT = 16  # tokens of a draft block, where nothing else is said


@dataclass(slots=True)  # frozen ones take three times as long to make; tuples, to read
class OfferView:
    """One source of drafts as a policy sees it: what waits, and what is expected of the next draft. Lengths in tokens,
    times in seconds on the caller's clock. Nobody changes one."""

    tokens: int | None = None  # of the draft that waits, of all branches of a tree; None = none waits
    forecast: Forecast | None = None  # of its next draft; None = nothing drafts there, or nothing has yet
    longest: int = MAX_DRAFT  # longest draft it may be asked for; 0 = its drafts are not verified
    depth: int = 0  # of the draft that waits if it is a tree: tokens of its longest path; 0 = it is a chain
    # For each token of that draft the chance that it stands with all before it; () = its drafter does not say
    reach: tuple[float, ...] = ()
    least: int = 0  # tokens of its drafts where the rule needs long ones, all or nothing; 0 = any
    hint: int | None = None  # the latest one that a device was given
    # When the verdict left on which a device now drafts: it stays while the server decodes. -inf = the device rested
    # until then, and may have a long text to read first.
    asked_since: float = 0.0
    share: float = 1.0  # of the tokens that it is asked for, those that it proposes
    unread: int = 0  # tokens of the text that it has to read first


NO_OFFER = OfferView(longest=0)  # where nothing drafts


@dataclass(slots=True)
class SessionView:
    """One session as a policy sees it. All lengths in tokens, all times in seconds on the caller's clock.

    Nobody changes one: a session of which nothing has changed has the same view in the next snapshot.
    """

    id: int
    uncomputed: int  # committed tokens whose KV is missing, >= 1: the newest one always is
    server_drives: bool  # the server decodes it unasked (no draft expected)
    waiting_since: float  # when its last verdict left
    device: OfferView  # what its device drafts,
    server: OfferView  # and what the drafter beside the target does
    paused: bool = False  # the reader is slow: nothing unasked until it catches up
    absent: bool = False  # the reader is gone: nothing at all until one comes back
    context: int = 0  # KV positions that a step over it reads, without those it computes
    ready_since: float = 0.0  # when its device's draft came, or else when its last verdict left
    pace: float = 0.0  # tokens/s its user was promised; 0 = none
    due: float = inf  # when its next token must be there to keep that pace
    background: bool = False  # gives way to others
    left: int = 1 << 30  # tokens that it may still write
    # Its answer is long, and nothing but the context ends it: gives way to shorter ones
    runs_on: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The server at the moment of planning; sessions in order of arrival."""

    sessions: tuple[SessionView, ...]
    memory: object = None  # what the policy's last plan said, in `BatchPlan.memory`


@dataclass(slots=True)
class Slice:
    """Compute the next `tokens` uncomputed committed tokens of a session; if `decide`, its pending draft as well,
    and commit what the target says. Without `decide` it is a chunk of a prompt, which leaves the newest token out."""

    session: int
    tokens: int
    decide: bool
    ahead: bool = False  # no reader waits for it yet: it takes free KV blocks only
    padding: int = 0  # positions computed for nothing, so that all slices of a static batch are equally long
    # Draft tokens to verify at most, of a tree the first ones; None = all that are pending
    draft: int | None = None
    # Goes with the verdict: longest useful next draft, of a tree its depth; 0 = do not draft, None = no advice.
    hint: int | None = None
    own: int | None = None  # tokens of the server's own draft to verify at most; None = all
    ask: int = 0  # tokens that the server's drafter is to draft after this step at most


def fitting(offer: OfferView, room: int) -> int | None:
    """`Slice.draft`, or `Slice.own`, in a step with `room` tokens left: None = the whole draft fits."""
    return room if room < (offer.tokens or 0) else None


@dataclass(frozen=True)
class BatchPlan:
    """The next step. When nothing of it can be done: sleep until an arrival or `wake_at` (None = an arrival)."""

    slices: tuple[Slice, ...] = ()
    wake_at: float | None = None
    memory: object = None  # for the next snapshot: policies have no state of their own


class PolicyOptions(NamedTuple):
    """What a server is told about its policy; each policy takes what it needs, by its class method `of`."""

    draft_wait: float  # seconds a session waits for its device before the server decodes one token by itself
    batch: int = 0  # drafts that policy `static` waits for; 0 = one of every session
    server_draft: int = 4  # tokens of each draft of the server's own under policy `fcfs`


class SchedulingPolicy(Protocol):
    """Decides what one step computes. Pure: same arguments, same plan.

    Never more positions than `profile.max_step_tokens`: level exact is tried at load for steps up to that size.
    """

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan: ...
