"""The runs of one measurement: each contender once, then all again, so that a drift of the machine hits all of them."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from lab.testbed.baselines import BASELINES, past_hubs
from lab.testbed.fleet import Fleet, Server
from lab.testbed.load.http_device import HttpDevice, Usages, client, first_model
from lab.testbed.load.load import Item, Load
from lab.testbed.load.outcome import RunFigures, figures
from lab.testbed.load.records import Clock, RunResult
from lab.testbed.load.run import Progress, Run, run_on
from lab.testbed.load.server_process import Running, serving
from lab.testbed.load.site import Seat, is_alone
from lab.testbed.load.slo import Slo
from lab.testbed.load.summary import summarise
from lab.testbed.traces import TraceSet

Begin = Callable[[str], Progress]  # a run's name -> what hears of its progress
# What a server over HTTP does not tell.
UNKNOWN = (
    *("acceptance_per_position", "released_unverified", "released_wrong", "positions_per_token", "steps"),
    *("mean_batch", "busy_share", "stale_drafts", "bytes_up_per_token", "bytes_down_per_token"),
    *("wasted_draft_tokens", "wasted_share"),
)


@dataclass(frozen=True)
class Measurement:
    """What all runs have in common."""

    items: Sequence[Item]
    load: Load
    slo: Slo
    repeats: int

    def loads(self) -> list[tuple[int, Load]]:
        """Of each repeat: the same for all contenders, another seed each time."""
        return [(repeat, replace(self.load, seed=self.load.seed + repeat)) for repeat in range(self.repeats)]


async def measure_fleet(
    measurement: Measurement, fleet: Fleet, baselines: Sequence[str], traces: TraceSet | None, begin: Begin
) -> list[RunFigures]:
    """All baselines of a fleet, interleaved. Servers run on between their turns and have nothing to do then."""
    wanting = fleet.wanting(measurement.slo.pace)
    bare = past_hubs(wanting)
    contenders = {name: BASELINES[name](bare) if name in BASELINES else fleet for name in baselines}
    found = []
    async with AsyncExitStack() as stack:
        servers: dict[Server, Running] = {}
        for repeat, load in measurement.loads():
            for name, contender in contenders.items():
                progress = begin(name)
                server = None if is_alone(contender) else await _server(contender, traces, servers, stack)
                result = await run_on(server, contender, measurement.items, traces, load, progress)
                summary = summarise(result, measurement.slo)
                found.append(figures(name, repeat, result, summary, measurement.items))
    return found


async def _server(
    fleet: Fleet, traces: TraceSet | None, servers: dict[Server, Running], stack: AsyncExitStack
) -> Running:
    if fleet.server not in servers:
        started = serving(fleet.server, fleet.dilation, traces)
        servers[fleet.server] = await stack.enter_async_context(started)
    return servers[fleet.server]


async def measure_urls(
    measurement: Measurement, urls: Sequence[str], users: int, model: str, key: str, begin: Begin
) -> list[RunFigures]:
    """APIs that run already, all together as one contender; users are dealt out to them."""
    found = []
    async with AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(client(url, key)) for url in urls]
        names = [model or await first_model(api) for api in apis]
        for repeat, load in measurement.loads():
            usages, clock = Usages(), Clock()
            devices = [HttpDevice(api, name, clock, usages) for api, name in zip(apis, names)]
            seats = [Seat(user, user % len(apis), devices[user % len(apis)]) for user in range(users)]
            result = RunResult("real", load.warmup, load.warmup + load.duration)
            await Run(clock, load, measurement.items, result.requests).through(seats, None, [], begin("url"))
            summary = _told(summarise(result, measurement.slo), usages, result.start)
            found.append(figures("url", repeat, result, summary, measurement.items))
    return found


def _told(summary: dict[str, Any], usages: Usages, start: float) -> dict[str, Any]:
    """A summary of what can be known from outside, and what the APIs say of their drafts."""
    known = {name: value for name, value in summary.items() if name not in UNKNOWN}
    counted = [usage for record, usage in usages if record.sent >= start]
    names = ("drafted", "accepted", "rounds")
    drafted, accepted, rounds = (sum(usage.get(name, 0) for usage in counted) for name in names)
    return known | {
        "drafted_tokens": int(drafted),
        "acceptance_rate": round(accepted / drafted, 6) if drafted else 0.0,
        "tokens_per_round": round(1 + accepted / rounds, 6) if rounds else 0.0,
    }
