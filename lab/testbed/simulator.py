"""A whole fleet in discrete events: the policies, position rules and stop rules of the product, without real time.

    result = simulate(fleet, traces, Load(duration=60))

Seconds of the target, of a draft beside it and of the devices come from the profiles, delays of the links from
`LinkModel`, drafts and texts from recorded traces. Users, items and random numbers are those of an emulated run of the
same fleet and load, so the two can be compared (simulated/compare.py). Not simulated: lost connections, readers who do
not read, and whatever a real server spends besides its engine (`Overhead` puts a constant in its place; it is 0 unless
one is given).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hw_profiles import catalog
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load
from lab.testbed.load.records import RequestRecord, RunResult, between, total
from lab.testbed.rules import rule_of
from lab.testbed.simulated.asking import Answers
from lab.testbed.simulated.device import AloneDevice, SimulatedDevice
from lab.testbed.simulated.drafting import SimulatedDrafts
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.links import ways
from lab.testbed.simulated.relay import SimulatedRelay
from lab.testbed.simulated.sequences import scripts
from lab.testbed.simulated.server import Overhead, SimulatedServer, drafting_of
from lab.testbed.simulated.users import Arrivals, Asks, SimulatedUser
from lab.testbed.traces import TraceSet
from opensled.core.errors import UsageError
from scheduler import make_policy
from scheduler.plan import PolicyOptions, SchedulingPolicy

LABEL = "simulated"
_SEEDS = 1_000_003  # so far apart that links of different load seeds share no random numbers


class Simulated(NamedTuple):
    """A finished simulation."""

    result: RunResult
    events: int


def simulate(fleet: Fleet, traces: TraceSet, load: Load, overhead: Overhead = Overhead()) -> RunResult:
    """The run of all users of `fleet` at one server; the same arguments give the same result.

    Raises UsageError for a server without an accelerator profile, or whose target does not fit; NotFound for a profile
    that does not exist.
    """
    return simulate_users(fleet, traces, load, range(fleet.users), overhead).result


def simulate_users(
    fleet: Fleet,
    traces: TraceSet,
    load: Load,
    users: Sequence[int],
    overhead: Overhead = Overhead(),
    policy: SchedulingPolicy | None = None,
) -> Simulated:
    """The run of some users of a fleet, by number, at one server; `policy`: other than the one the fleet names."""
    events, records = Events(), list[RequestRecord]()
    server = _server(fleet.server, traces, events, overhead, policy)
    hubs = _hubs(fleet, server, events, overhead, load)
    speeds, items = [_speed(group, traces) for group in fleet.groups], scripts(traces)
    groups = [index for index, group in enumerate(fleet.groups) for _ in range(group.count)]
    members = {}
    for number in users:
        index = groups[number]
        asked = hubs[number % len(hubs)] if hubs and not fleet.groups[index].direct else server
        group = fleet.groups[index]
        device = _device(group, speeds[index], events, asked, number, _seed(load, number))
        members[number] = SimulatedUser(number, index, device, items, load, events, records)
    _start(members, fleet.users, load, events)
    events.run(load.warmup)
    before, vetted = replace(server.totals), total([hub.totals for hub in hubs])
    events.run(load.warmup + load.duration)
    result = RunResult(LABEL, load.warmup, events.now, records, between(before, server.totals))
    result.hubs = between(vetted, total([hub.totals for hub in hubs]))
    return Simulated(result, events.count)


def _seed(load: Load, number: int) -> int:
    """Of the links of user `number`; the hubs' numbers come after those of all users."""
    return _SEEDS * load.seed + number


def _start(members: dict[int, SimulatedUser], users: int, load: Load, events: Events) -> None:
    if load.arrivals != "closed":
        Arrivals(members, users, load, events).start()
        return
    for user in members.values():
        user.start(users, load)


def _server(
    server: Server, traces: TraceSet, events: Events, overhead: Overhead, policy: SchedulingPolicy | None
) -> SimulatedServer:
    law = _law(server)
    planner = policy or make_policy(server.policy, _options(server))
    drafting = drafting_of(law, traces.items) if law.drafting else None
    return SimulatedServer(events, law, planner, server.sessions_that_fit, overhead, drafting=drafting)


def _options(server: Server) -> PolicyOptions:
    return PolicyOptions(server.draft_wait, server.batch, server.draft_length)


def _law(server: Server) -> StepLaw:
    if not server.accelerator:
        raise UsageError(
            "a simulated server, or hub, needs an accelerator profile: set `accelerator` in its table"
        )
    if not server.sessions_that_fit:
        beside = f" beside a {server.draft} draft" if server.draft else ""
        raise UsageError(
            f"{server.target} at {server.weight_bits:g} bits and {server.context} positions does not fit on "
            f"{server.accelerator}{beside}; take fewer bits, a shorter context or a larger accelerator"
        )
    return StepLaw.of(server)


def _hubs(
    fleet: Fleet, server: SimulatedServer, events: Events, overhead: Overhead, load: Load
) -> list[SimulatedRelay]:
    """All of a fleet, each with its own way up, which its sequences share."""
    hub = fleet.hub
    if hub is None:
        return []
    law, policy = _law(hub), make_policy(hub.policy, _options(hub))
    roads = [ways(hub.link, _seed(load, fleet.users + number)) for number in range(hub.count)]
    names = [replace(hub, name=f"{hub.name}-{number}") for number in range(hub.count)]
    return [
        SimulatedRelay(events, law, each, policy, server, road, overhead) for each, road in zip(names, roads)
    ]


def _speed(group: Group, traces: TraceSet) -> DraftSpeed | None:
    """A lookup costs next to nothing, and where no device is named the draft model is as fast as asked."""
    named = group.device and group.drafter != "lookup"
    speed = catalog.device(group.device).draft(group.draft) if named else None
    if group.drafter == "alone" and speed is None:
        raise UsageError("a device that writes alone needs a device profile: set `device` in [[device]]")
    if group.drafter == "alone" and not all(item.alone_ids for item in traces.items):
        raise UsageError(f"the recorded drafts of {traces.drafter} do not say what it writes alone")
    return speed


def _device(
    group: Group, speed: DraftSpeed | None, events: Events, server: Answers, number: int, seed: int
) -> Asks:
    if group.drafter == "alone" and speed is not None:
        return AloneDevice(events, speed)
    user = ways(group.user_link, seed) if group.user_link else None
    looks_ahead = group.look_ahead and group.drafter != "lookup"
    if group.drafter == "none":  # all blocks are empty
        group = replace(group, draft_length=0, stop="fixed")
    rule = rule_of(group)
    drafts = SimulatedDrafts(events, speed, rule, looks_ahead)
    return SimulatedDevice(events, server, ways(group.link, seed), drafts, user, group.wish(number))
