"""Who may draft for a target: what each way gives a user, by simulation, and how many users it holds, by the law.

In all ways policy `goodput` decides, for each user and step, whether a draft is worth its time. So a way is never worse
by much than the server alone; where it is, its drafts cost time to try, or its weights memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lab.testbed.baselines import BASELINES, DRAFT_BESIDE, LONGEST, SERVER_SD, with_head
from lab.testbed.config import MODEL, PlanConfig
from lab.testbed.fleet import Fleet
from lab.testbed.load.load import Load
from lab.testbed.planner.asking import best_at, fastest
from lab.testbed.planner.capacity_law import Capacity, Setting, kv_fits
from lab.testbed.planner.planning import WORTH_IT, draft_wait, fleet_of, setting_of, source_of, work_of
from lab.testbed.planner.recorded_drafts import traces_of
from lab.testbed.simulator import simulate
from lab.testbed.traces import TraceSet

ALONE, DEVICES, SERVER, BOTH = WAYS = ("alone", "devices", "server", "both")  # the simplest first
BESIDE = (SERVER, BOTH)  # with a draft in the accelerator's memory
_BASELINES = dict(zip(WAYS, ("centralized", "opensled-device", "opensled-server", "opensled")))
# Tokens that each user of a simulation reads before it counts, about an answer; that all together read then, some
# dozens of answers, so that hard and easy ones are there in their shares; and each user at least
WARM_UP, ALL_READ, EACH_READS = 100, 3000, 50
ALIKE = 1.02  # simulated rates are no more exact

Rates = dict[str, float | None]  # tokens/s of each user by way; None = no room


def best_way(values: Mapping[str, float | None]) -> str:
    """The server alone where no draft is worth it; else the simplest of the ways that are as good as the best."""
    known = {way: value for way, value in values.items() if value is not None}
    top = max(known.values())
    if top <= known[ALONE] * WORTH_IT:
        return ALONE
    return next(way for way in WAYS[1:] if way in known and known[way] * ALIKE >= top)


@dataclass(frozen=True)
class Simulation:
    """Users on one accelerator who ask again as soon as an answer ends."""

    fleet: Fleet  # of one user
    setting: Setting  # the same for the law
    traces: TraceSet
    users: int
    drafter: str = MODEL  # what drafts beside the target
    seed: int = 0

    @classmethod
    def of(cls, config: PlanConfig, accelerator: str, users: int, seed: int = 0) -> "Simulation":
        """So many users of the plan on that accelerator."""
        setting, traces = setting_of(config, accelerator, work_of(config)), traces_of(source_of(config))
        return cls(fleet_of(config, accelerator), setting, traces, users, config.server_drafter, seed)

    def rates(self) -> Rates:
        """Of all ways."""
        return {way: self.rate(way) for way in WAYS}

    def rate(self, way: str) -> float | None:
        """Tokens/s of each user, in which the wait for the first token of an answer counts; None = no room."""
        if self.users > places(self.setting, way):
            return None
        name = _BASELINES[way]
        baseline = BASELINES[name]
        if name in DRAFT_BESIDE and self.drafter != MODEL:
            baseline = with_head(baseline, self.drafter)
        pace = fastest(self.setting, "centralized", self.users)[0]
        load = Load(
            warmup=WARM_UP / pace, duration=max(EACH_READS, ALL_READ / self.users) / pace, seed=self.seed
        )
        groups = tuple(replace(group, draft_length=LONGEST) for group in self.fleet.groups)
        server = replace(self.fleet.server, draft_wait=draft_wait(self.setting, LONGEST))
        fleet = replace(self.fleet, groups=groups, server=server).of_users(self.users)
        return simulate(baseline(fleet), self.traces, load).server.tokens / load.duration / self.users


def places(setting: Setting, way: str) -> int:
    """Users whose KV fits; 0 where the draft has no profile beside the target."""
    if way in BESIDE and setting.draft_cost is None:
        return 0
    return kv_fits(setting, _BASELINES[way])


def held(setting: Setting, pace: float) -> dict[str, Capacity]:
    """By way, the mode that the server takes at `pace` tokens/s, with the users whom it holds."""
    plain = best_at(setting, "centralized", pace)
    devices = _more(plain, best_at(setting, "sled-continuous", pace))
    if setting.draft_cost is None:
        return {ALONE: plain, DEVICES: devices}
    beside = _beside(setting, plain)
    server = _more(beside, best_at(setting, SERVER_SD, pace))
    return {ALONE: plain, DEVICES: devices, SERVER: server, BOTH: _more(server, _beside(setting, devices))}


def _more(simple: Capacity, other: Capacity) -> Capacity:
    return other if other.users > simple.users else simple


def _beside(setting: Setting, found: Capacity) -> Capacity:
    """The same with a draft in memory that is not used."""
    fits = kv_fits(setting, _BASELINES[SERVER])
    return replace(found, users=min(found.users, fits), kv_fits=fits)
