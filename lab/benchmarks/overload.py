"""Ten times more load than a server can serve: what it still delivers, to whom, and how those outside are treated."""

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any

import httpx

from edge_client.link.link import Link
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.tenants import TenantRequest, ask, close, late_share, links, random_prompt, served
from lab.testbed.cells import REGIMES
from lab.testbed.load.server_process import METRICS
from lab.testbed.provenance import SEED
from opensled.core.errors import OpenSledError
from opensled.core.messages import Open, SamplingParams
from opensled.metrics.registry import PREFIX, samples

REGIME = "hub"
D = 2.0  # real seconds for each emulated one
PACE = 12.0  # emulated tokens/s that every admitted request must keep
TENANTS = {"greedy": 10.0, "a": 1.0, "b": 1.0, "c": 1.0}  # how often each asks, relatively
TOKENS = 32  # of an answer
# Offered, relative to what is served when every request waits to be admitted.
LOADS = (0.5, 1.0, 2.0, 5.0, 10.0)
BUSY = 48  # streams that find out how much that is: more than keep their pace
AFTER = 0.5  # offered when the overload is over
SHED_S, RECOVERY_S = 0.005, 5.0  # what is required
PARAMS = SamplingParams(temperature=0.8, max_tokens=TOKENS, ignore_eos=True)
COMPARED = (
    f"`opensled serve` with `min-pace` over the emulated accelerator of regime {REGIME} (dilation {D:g}), so that it "
    f"promises each request {PACE:g} emulated tokens/s. Four equal tenants ask for answers of {TOKENS} tokens at "
    "random moments, the first one ten times as often as each of the others; who is sent away does not come "
    "back. Goodput: tokens per emulated second of answers that kept the pace. Peak: the best of all loads. "
    "Recovery: from the end of the highest load until no request is shed any more, at half the capacity. "
    "Refusals at the highest load are timed in real seconds, inside the server by its histogram "
    "`opensled:refusal_seconds`, and by the client from Open to Failure."
)


@dataclass(frozen=True)
class Phase:
    """A time of constant load. Seconds on time.perf_counter."""

    load: float
    start: float
    end: float

    def goodput(self, asked: Sequence[TenantRequest]) -> float:
        """Tokens per emulated second to those who kept their pace."""
        tokens = sum(each.between(self.start, self.end) for each in asked if D * each.pace >= PACE)
        return D * tokens / (self.end - self.start)

    def of_tenants(self, asked: Sequence[TenantRequest]) -> list[float]:
        """The same, tenant by tenant."""
        return [self.goodput([each for each in asked if each.tenant == tenant]) for tenant in TENANTS]

    def sheds(self, asked: Sequence[TenantRequest]) -> list[TenantRequest]:
        return [each for each in asked if each.shed_s is not None and self.start <= each.at < self.end]


@dataclass(frozen=True)
class Run:
    """One ramp and what came of it."""

    capacity: float  # requests per real second
    phases: list[Phase]
    asked: list[TenantRequest]
    refusals: dict[float, float]  # at the worst load: how many left within so many seconds; inf = all
    late_share: float = 0.0  # of the emulated steps

    @property
    def worst(self) -> Phase:
        return self.phases[-2]

    def goodputs(self) -> dict[str, float]:
        return {f"{phase.load:g}x": phase.goodput(self.asked) for phase in self.phases[:-1]}

    def shed_s(self) -> list[float]:
        """Of each refusal at the worst load, as its client sees it, ascending."""
        found = [each.shed_s for each in self.worst.sheds(self.asked) if each.shed_s]
        return sorted(found) or [SHED_S]  # none in a run that is too short to fill the server

    def refused_within(self) -> float:
        """The share of these refusals that left the server within SHED_S of their message."""
        return self.refusals[SHED_S] / self.refusals[inf] if self.refusals[inf] else 1.0

    def refusal_p99_s(self) -> float:
        """The bucket that holds the 99th percentile inside the server, by its upper bound."""
        due = 0.99 * self.refusals[inf]
        return min(bound for bound, count in self.refusals.items() if count >= due)

    def recovery_s(self) -> float:
        """Until the last one was sent away after the load had gone down."""
        after = self.phases[-1]
        return max((each.at - after.start for each in after.sheds(self.asked)), default=0.0)


def measure(quick: bool) -> Figure:
    """One ramp after another, each on a server of its own."""
    seconds, repeats = (2.0, 1) if quick else (25.0, 3)
    runs = [_run(seconds, SEED + repeat) for repeat in range(repeats)]
    return Figure(
        title="Overload at ten times the capacity",
        unit="of what is required or best",
        more_is_better=True,
        compared=COMPARED,
        loses="Shed requests are not served: nine of ten requests at the highest load; their clients must ask again.",
        samples=_samples(runs),
        ratios=(
            Comparison("goodput at 10x over its peak", "goodput at 10x", "peak goodput", 0.9),
            Comparison("refusals that leave within 5 ms", "refused within 5 ms", "one", 0.99),
            Comparison("Jain fairness of four equal tenants at 10x", "Jain index", "one", 0.95),
            Comparison("5 s over the recovery", "5 s over recovery", "one", 1.0),
        ),
        label="emulated",
        facts=_facts(runs, seconds),
    )


def _samples(runs: Sequence[Run]) -> dict[str, list[float]]:
    goodputs = [run.goodputs() for run in runs]
    return {
        "goodput at 10x": [each["10x"] for each in goodputs],
        "peak goodput": [max(each.values()) for each in goodputs],
        "refused within 5 ms": [run.refused_within() for run in runs],
        "Jain index": [jain(run.worst.of_tenants(run.asked)) for run in runs],
        "5 s over recovery": [RECOVERY_S / max(run.recovery_s(), 0.1) for run in runs],
        "one": [1.0] * len(runs),
    }


def _facts(runs: Sequence[Run], seconds: float) -> dict[str, Any]:
    return {
        "seconds of a phase": seconds,
        "capacity, requests per second": [round(run.capacity, 2) for run in runs],
        "goodput by load, tokens per emulated second": [
            {load: round(goodput, 1) for load, goodput in run.goodputs().items()} for run in runs
        ],
        "goodput at 10x by tenant": [[round(x, 1) for x in run.worst.of_tenants(run.asked)] for run in runs],
        "refusal inside the server, ms, p99 is at most": [1000 * run.refusal_p99_s() for run in runs],
        "refusal seen by its client, ms, median": [round(1000 * median(run.shed_s()), 2) for run in runs],
        "refusal seen by its client, ms, p99": [
            round(1000 * run.shed_s()[int(0.99 * len(run.shed_s()))], 2) for run in runs
        ],
        "shed at 10x": [len(run.worst.sheds(run.asked)) for run in runs],
        "answers below their pace": [_share_below(run.asked) for run in runs],
        "late steps, share": [round(run.late_share, 4) for run in runs],
        "recovery, s": [round(run.recovery_s(), 2) for run in runs],
    }


def _share_below(asked: Sequence[TenantRequest]) -> float:
    finished = [each for each in asked if each.finished]
    return round(sum(D * each.pace < PACE for each in finished) / max(1, len(finished)), 4)


def jain(values: Sequence[float]) -> float:
    """1 = all get equally much, 1 / n = one gets all."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values)) if any(values) else 0.0


def _run(seconds: float, seed: int) -> Run:
    flags = ("--metrics", "127.0.0.1:0")
    with served(REGIMES[REGIME], D, list(TENANTS), *flags, min_pace=PACE / D) as process:
        metrics = next(line.removeprefix(METRICS) for line in process.lines if line.startswith(METRICS))
        run = asyncio.run(_ramp(process.address, metrics, seconds, random.Random(seed)))
    return replace(run, late_share=late_share(process))


async def _ramp(address: str, metrics: str, seconds: float, draw: random.Random) -> Run:
    open_links = links(address, list(TENANTS))
    try:
        capacity = await _capacity(open_links, seconds)
        asked: list[asyncio.Task[TenantRequest]] = []
        phases = []
        async with asyncio.TaskGroup() as group:
            for load in (*LOADS, AFTER):
                start, before = time.perf_counter(), await _refusals(metrics)
                asked += await _arrive(group, open_links, load * capacity, seconds, draw)
                phases.append(Phase(load, start, time.perf_counter()))
                if load == max(LOADS):
                    after = await _refusals(metrics)
                    refusals = {bound: count - before[bound] for bound, count in after.items()}
        return Run(capacity, phases, [task.result() for task in asked], refusals)
    finally:
        await close(open_links)


async def _refusals(metrics: str) -> dict[float, float]:
    """How many refusals have left the server within so many seconds."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(metrics)).text
    buckets = [each for each in samples(text) if each[0] == f"{PREFIX}refusal_seconds_bucket"]
    return {float(labels["le"]): count for _, labels, count in buckets}


async def _arrive(
    group: asyncio.TaskGroup, open_links: dict[str, Link], rate: float, seconds: float, draw: random.Random
) -> list[asyncio.Task[TenantRequest]]:
    """Requests that come when they come, for so many seconds; each is a task of its own."""
    tasks, due = [], time.perf_counter()
    end = due + seconds
    while (due := due + draw.expovariate(rate)) < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        (tenant,) = draw.choices(list(TENANTS), list(TENANTS.values()))
        tasks.append(group.create_task(ask(open_links[tenant], tenant, Open(random_prompt(draw), PARAMS))))
    await asyncio.sleep(max(0.0, end - time.perf_counter()))
    return tasks


async def _capacity(open_links: dict[str, Link], seconds: float) -> float:
    """Requests per second that are served when more streams than it takes ask again and again."""
    draw, start = random.Random(SEED), time.perf_counter()
    found: list[TenantRequest] = []

    async def again(tenant: str) -> None:
        while time.perf_counter() < start + seconds:
            found.append(await ask(open_links[tenant], tenant, Open(random_prompt(draw), PARAMS)))
            await asyncio.sleep(found[-1].retry_after)

    tenants = list(TENANTS)
    await asyncio.gather(*(again(tenants[number % len(tenants)]) for number in range(BUSY)))
    half = start + seconds / 2  # by then all places are taken
    tokens = sum(each.between(half, start + seconds) for each in found)
    if not tokens:
        raise OpenSledError(
            f"no token came within {seconds:g} s: this machine is too busy to measure on; try again later"
        )
    return tokens / TOKENS / (seconds / 2)
