"""Plans of policy `goodput` for sessions that it has seen for some seconds, and devices and targets for them."""

from hw_profiles.step_cost import HardwareProfile, Roofline
from scheduler.estimates import Forecast
from scheduler.goodput.policy import Goodput
from scheduler.plan import BatchPlan, SessionView, Snapshot
from tests.views import viewed

WAIT, NOW = 0.25, 100.0
SECONDS = 8  # for which the policy has seen what it plans for
# Bound by reading weights: tokens cost nothing
READS = HardwareProfile(256, Roofline(read_s=0.03, token_s=1e-6))
COMPUTES = HardwareProfile(256, Roofline(read_s=1e-4, token_s=3e-3))  # each token costs what it is worth
# Nearly always right, 20 ms away and 5 ms a token; and one that is never right.
GOOD = Forecast(0.95, 0.95, delay_s=0.02, draft_s=0.005, jitter_s=0.002, drafts=50)
HOPELESS = GOOD._replace(first=0.01, later=0.01)
FAR = GOOD._replace(delay_s=3.0)


def view(id: int = 1, **fields: object) -> SessionView:
    """A session that the server decodes, whose last verdict has just left."""
    known = {"server_drives": True, "waiting_since": NOW, "context": 50}
    times = {"ready_since": NOW, "asked_since": NOW}
    return viewed(id, **{**known, **times, **fields})  # type: ignore[arg-type]


def drafting(id: int = 1, **fields: object) -> SessionView:
    """A session whose good device is at work on a draft of four."""
    return view(id, **{"server_drives": False, "hint": 4, "forecast": GOOD, **fields})


def plan(*sessions: SessionView, profile: HardwareProfile = READS, now: float = NOW) -> BatchPlan:
    """The plan at `now`, when the policy has seen the same sessions for some seconds: it does not change its mind at
    first sight."""
    policy, memory = Goodput(WAIT), None
    for earlier in range(SECONDS, 0, -1):
        memory = policy.plan(Snapshot(sessions, memory), profile, NOW - earlier).memory
    return policy.plan(Snapshot(sessions, memory), profile, now)
