"""How long a scheduling policy takes to plan one step of a thousand sessions.

The sessions are those of a simulated fleet, step after step, so that what a policy keeps in mind between two plans, and
what it does only now and then, comes as often as on a server. Only its own seconds are counted.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median, quantiles

from hw_profiles.step_cost import DraftingCost, HardwareProfile, Roofline
from lab.benchmarks.figure import Comparison, Figure
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load
from lab.testbed.provenance import SEED
from lab.testbed.recordings import BUNDLED
from lab.testbed.simulator import simulate_users
from lab.testbed.traces import TraceSet, read_traces
from scheduler import make_policy
from scheduler.plan import BatchPlan, PolicyOptions, SchedulingPolicy, Snapshot

SESSIONS = 1000
FEW = 100  # for a look that all of this runs
POLICIES = ("goodput", "fcfs")
BOUND, BOUND_MS = "1.5 ms", 1.5
FAST = Group(1, "agx-orin", "ethernet", draft_length=8, pace=10.0)
KINDS = (
    replace(FAST, device="pi-5", link="lte"),
    replace(FAST, device="orin-nano-super", link="wifi-good"),
    replace(FAST, device="laptop-cpu", link="5g"),
    FAST,
)
SERVER = Server(accelerator="h200", target="dense-8b", context=256)  # has room for a thousand of them
DRAFTING = replace(SERVER, draft="0.5b")
# A target whose weights take so long to read that positions cost nothing beside them: drafts always pay.
READING = HardwareProfile(max_step_tokens=8192, cost=Roofline(read_s=0.3, token_s=1e-6))
# A draft model beside it that costs hardly anything
CHEAP = DraftingCost(1e-3, 1e-6, 1e-7)
# One on which a position is dear: drafts never pay.
COMPUTING = HardwareProfile(cost=Roofline(read_s=0.001, token_s=1e-4))


@dataclass(frozen=True)
class State:
    """What a thousand sessions are at."""

    name: str
    groups: Sequence[Group]
    profile: HardwareProfile | None = None  # what the policy reckons with; None = the simulated server's own
    server: Server = SERVER
    settled: float = 6.0  # seconds before its plans count; devices become known meanwhile
    duration: float = 3.0  # seconds in which they count

    def fleet(self, sessions: int) -> Fleet:
        return Fleet(self.server, tuple(self.groups)).of_users(sessions)

    @property
    def load(self) -> Load:
        return Load(warmup=self.settled or 0.01, duration=self.duration, seed=SEED)


STATES = (
    State("all decode", (replace(FAST, drafter="none"),)),
    State("drafting pays", (FAST,), READING),
    State("all kinds of devices", KINDS),
    State("drafting does not pay", KINDS, COMPUTING),
    State("all come with prompts", KINDS, settled=0.0, duration=1.0),
    State("device and server draft", (FAST,), replace(READING, drafting=(CHEAP,)), DRAFTING),
)


@dataclass
class Timed:
    """A policy by the clock."""

    inner: SchedulingPolicy
    state: State
    seconds: list[float] = field(default_factory=list)  # of each plan that counts
    sessions: list[int] = field(default_factory=list)  # it was about
    hinted: list[int] = field(default_factory=list)  # of these, those that may draft
    decided: list[int] = field(default_factory=list)  # slices of it
    drafts: list[int] = field(default_factory=list)  # drafts that waited, of devices and of the server
    step_s: list[float] = field(default_factory=list)  # that the profile expects of the step

    def plan(self, snapshot: Snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        started = time.thread_time()  # a busy machine is no slow policy
        plan = self.inner.plan(snapshot, self.state.profile or profile, now)
        seconds = time.thread_time() - started
        if now >= self.state.settled:
            self.seconds.append(seconds)
            self.sessions.append(len(snapshot.sessions))
            self.hinted.append(sum(bool(session.device.hint) for session in snapshot.sessions))
            self.decided.append(len(plan.slices))
            self.drafts.append(
                sum(bool(each.device.tokens) + bool(each.server.tokens) for each in snapshot.sessions)
            )
            self.step_s.append(_step_s(plan, snapshot, self.state.profile or profile))
        return plan

    @property
    def facts(self) -> dict[str, float]:
        return {
            "plans": len(self.seconds),
            "median ms": round(1000 * median(self.seconds), 4),
            "p99 ms": round(1000 * quantiles(self.seconds, n=100)[98], 4),
            "sessions": median(self.sessions),
            "sessions told to draft": median(self.hinted),
            "sessions in a step": median(self.decided),
            "drafts at once, at most": max(self.drafts),
            "share of the steps' seconds": round(sum(self.seconds) / max(1e-9, sum(self.step_s)), 4),
        }


def measure(quick: bool) -> Figure:
    """Each state with each policy, in turns."""
    sessions, repeats = (FEW, 1) if quick else (SESSIONS, 3)
    traces = read_traces(BUNDLED)
    samples: dict[str, list[float]] = {}
    facts: dict[str, dict[str, float]] = {}
    for _ in range(repeats):
        for state in STATES:
            for name in POLICIES:
                timed = _timed(name, state, sessions, traces)
                series = f"{name}, {state.name}"
                samples.setdefault(series, []).append(1000 * median(timed.seconds))
                facts[series] = timed.facts
    samples[BOUND] = [BOUND_MS] * repeats
    return Figure(
        title="Planning a step",
        unit="ms",
        more_is_better=False,
        compared=(
            f"Median processor time of `plan()` over {sessions} sessions of a simulated fleet (8B on an H200, devices "
            f"from Pi 5 on LTE to AGX Orin on Ethernet), in six states, against {BOUND_MS:g} ms. `plan` is called as "
            "a server calls it, step after step, with what it remembered; the slower plans in which `goodput` looks "
            "at all sessions anew are among them, and make its 99th percentile (under `facts`)."
        ),
        loses="`fcfs` weighs nothing and takes a part of the time; both are Python, and wait for no step.",
        samples=samples,
        ratios=(
            *(Comparison(f"goodput, {state.name}", f"goodput, {state.name}", BOUND, 1.0) for state in STATES),
            *(
                Comparison(
                    f"goodput over fcfs, {state.name}", f"goodput, {state.name}", f"fcfs, {state.name}"
                )
                for state in STATES
            ),
        ),
        facts={"sessions": sessions, "seed": SEED} | facts,
    )


def _step_s(plan: BatchPlan, snapshot: Snapshot, profile: HardwareProfile) -> float:
    """What the step is expected to take, with the drafts that the plan verifies."""
    known = {each.id: each for each in snapshot.sessions}
    drafted = sum((piece.draft or 0) + (piece.own or 0) for piece in plan.slices)
    tokens = sum(piece.tokens for piece in plan.slices) + drafted
    contexts = sum(known[piece.session].context for piece in plan.slices)
    return profile.cost.verify_s(tokens, contexts, len(plan.slices))


def _timed(policy: str, state: State, sessions: int, traces: TraceSet) -> Timed:
    """One simulation of the state."""
    inner = make_policy(policy, PolicyOptions(SERVER.draft_wait))
    timed = Timed(inner, state)
    fleet = state.fleet(sessions)
    with _uncollected():
        simulate_users(fleet, traces, state.load, range(fleet.users), policy=timed)
    return timed


@contextmanager
def _uncollected() -> Iterator[None]:
    """The simulation's own garbage is not the policy's."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
