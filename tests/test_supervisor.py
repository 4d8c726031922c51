"""Replicas are kept alive and known, without Ray: the supervisor, and a gateway's copy of its state."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from opensled.core.errors import EngineError, NotFound, Unreachable
from scheduler.cluster import supervisor as module
from scheduler.cluster.directory import GRACE, WatchedDirectory
from scheduler.cluster.placement import STALE
from scheduler.cluster.supervisor import ClusterSpec, ClusterState, ReplicaSupervisor
from tests.emulated import Clock
from tests.loops import in_loop
from tests.replicas import beat
from tests.system import until

TWO = ClusterSpec(2, "module:callable", {})


class ByHand:
    """Actors that live until a test ends them; each life beats once, as NAME-LIFE."""

    def __init__(self) -> None:
        self.supervisor: ReplicaSupervisor | None = None
        self.clock = Clock(50.0)
        self.lives: dict[str, int] = {}
        self.retired: list[str] = []
        self.drained: list[str] = []
        self.broken: set[str] = set()
        self._ends: dict[str, asyncio.Event] = {}

    async def lifetime(self, name: str) -> None:
        self.lives[name] = self.lives.get(name, 0) + 1
        if name in self.broken:
            self.supervisor.report_failure(name, "model", "no such model")
            return
        self._ends[name] = asyncio.Event()
        self.supervisor.beat(name, beat(f"{name}-{self.lives[name]}"))
        await self._ends[name].wait()

    async def retire(self, name: str, serves: bool) -> None:
        self.retired.append(name)
        self.drained += [name] * serves
        self.end(name)

    def end(self, name: str) -> None:
        if name in self._ends:
            self._ends[name].set()


@asynccontextmanager
async def tended(spec: ClusterSpec = TWO, up: int = 0):
    """A supervisor and its runtime, with pauses too short to notice; so many replicas are up."""
    runtime = ByHand()
    runtime.supervisor = ReplicaSupervisor(spec, runtime, runtime.clock)
    try:
        async with asyncio.timeout(20):
            if up:
                runtime.supervisor.tend()
                await until(lambda: len(alive(runtime.supervisor)) == up)
            yield runtime.supervisor, runtime
    finally:
        await runtime.supervisor.stop()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    monkeypatch.setattr(module, "LOOK", 0.001)


def alive(supervisor: ReplicaSupervisor) -> list[str]:
    return sorted(one.replica for one, _ in supervisor.state().beats)


async def test_as_many_are_started_as_there_should_be():
    async with tended() as (supervisor, runtime):
        supervisor.tend()
        supervisor.tend()
        await until(lambda: alive(supervisor) == ["replica-0-1", "replica-1-1"])
        assert runtime.lives == {"replica-0": 1, "replica-1": 1}
        assert supervisor.state().wanted == 2


async def test_a_dead_one_is_forgotten_at_once_and_started_again():
    async with tended(up=2) as (supervisor, runtime):
        runtime.broken = {"replica-0"}
        runtime.end("replica-0")
        await until(lambda: alive(supervisor) == ["replica-1-1"])
        runtime.broken = set()
        await until(lambda: alive(supervisor)[1:] == ["replica-1-1"] and runtime.lives["replica-0"] > 1)


async def test_a_death_that_is_told_late_takes_nothing_from_the_next_life():
    async with tended(up=2) as (supervisor, runtime):
        supervisor.beat("replica-0", beat("reborn"))  # Ray was faster than the news
        runtime.broken = {"replica-0"}
        runtime.end("replica-0")
        await until(lambda: runtime.lives["replica-0"] > 1)
        assert alive(supervisor) == ["reborn", "replica-1-1"]


async def test_a_silent_replica_is_not_in_the_state():
    async with tended() as (supervisor, runtime):
        supervisor.beat("replica-0", beat("quiet", at=7.0))  # on a clock of its own
        runtime.clock.now += STALE - 0.1
        assert [age for _, age in supervisor.state().beats] == pytest.approx([STALE - 0.1])
        runtime.clock.now += 0.1
        assert supervisor.state().beats == []


async def test_one_that_does_not_start_is_told_of_and_tried_again():
    async with tended() as (supervisor, runtime):
        runtime.broken = {"replica-1"}
        supervisor.tend()
        await until(lambda: runtime.lives.get("replica-1", 0) > 2)
        assert supervisor.state().failures == {"replica-1": ("model", "no such model")}
        runtime.broken = set()
        await until(lambda: len(alive(supervisor)) == 2)
        assert supervisor.state().failures == {}


async def test_renewing_takes_one_after_the_other():
    async with tended(up=2) as (supervisor, runtime):
        least = 2

        async def watch():
            nonlocal least
            while True:
                least = min(least, len(alive(supervisor)))
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        await supervisor.restart()
        watching.cancel()
        assert alive(supervisor) == ["replica-0-2", "replica-1-2"]
        assert runtime.retired == ["replica-0", "replica-1"] and least == 1


async def test_renewing_stops_at_the_first_that_does_not_come_back():
    async with tended(up=2) as (supervisor, runtime):
        runtime.broken = {"replica-0"}
        with pytest.raises(EngineError, match="replica-0 does not come back: no such model"):
            await supervisor.restart()
        assert runtime.retired == ["replica-0"] and alive(supervisor) == ["replica-1-1"]


async def test_one_replica_too_many_is_retired():
    async with tended() as (supervisor, runtime):
        supervisor.beat("replica-2", beat("surplus"))
        supervisor.beat("replica-2", beat("surplus"))
        await until(lambda: runtime.retired == ["replica-2"])
        await until(lambda: alive(supervisor) == [])


async def test_one_that_still_loads_is_ended_without_a_drain():
    async with tended() as (supervisor, runtime):
        runtime.broken = {"replica-1"}
        supervisor.tend()
        await until(lambda: alive(supervisor) == ["replica-0-1"] and "replica-1" in runtime.lives)
        await supervisor.stop()
        assert runtime.drained == ["replica-0"] and sorted(runtime.retired) == ["replica-0", "replica-1"]


@pytest.mark.parametrize("up", [2, 0], ids=["at work", "before it began"])
async def test_a_stopped_supervisor_starts_no_replica(up):
    async with tended(up=up) as (supervisor, runtime):
        await supervisor.stop()
        supervisor.tend()
        await asyncio.sleep(0)
        assert sorted(runtime.retired) == ["replica-0", "replica-1"][:up] and alive(supervisor) == []
        assert sum(runtime.lives.values()) == up


class Source:
    """A scheduler's answers, one after the other; None: there is none at the moment."""

    def __init__(self, *states: ClusterState | None) -> None:
        self.left = list(states)

    async def __call__(self) -> ClusterState:
        state = self.left.pop(0)
        if state is None:
            raise Unreachable("no scheduler")
        return state


def state(*beats, up_s: float = 60.0, failures=None) -> ClusterState:
    return ClusterState([(one, age) for one, age in beats], failures or {}, 2, up_s)


ONE, OTHER = (beat("a"), 0.0), (beat("b"), 0.0)


@in_loop
async def looked(clock: Clock, *states: ClusterState | None, between: float = 0.0) -> WatchedDirectory:
    directory = WatchedDirectory(Source(*states), clock)
    for _ in states:
        await directory.look()
        clock.now += between
    return directory


def test_ages_become_times_on_the_readers_clock():
    assert [one.at for one in looked(Clock(50.0), state((beat("a", at=1e9), 0.5))).replicas()] == [49.5]


def test_without_a_scheduler_the_last_state_stands():
    clock = Clock(50.0)
    directory = looked(clock, state((beat("a"), 0.5)), None, None, between=STALE)
    (one,) = directory.replicas()
    assert one.replica == "a" and clock.now - one.at == pytest.approx(0.5 + STALE)  # of the last wait


def test_a_new_scheduler_has_not_heard_of_all_replicas():
    young, old = state((beat("b"), 0.0), up_s=1.0), state((beat("b"), 0.0), up_s=STALE)
    assert {one.replica for one in looked(Clock(50.0), state((beat("a"), 0.0)), young).replicas()} == {
        "a",
        "b",
    }
    assert {one.replica for one in looked(Clock(50.0), state((beat("a"), 0.0)), young, old).replicas()} == {
        "b"
    }


BROKEN = {"replica-1": ("engine", "no memory left")}


@pytest.mark.parametrize(
    "states",
    [
        [None, state(ONE, up_s=5.0), state(ONE, up_s=6.0), state(ONE, OTHER, up_s=7.0)],
        [state(up_s=3600.0), state(ONE, up_s=3600.5)],
        [state(ONE, up_s=GRACE - 1), state(ONE, up_s=GRACE - 0.5), state(ONE, up_s=GRACE)],
        [state(ONE, up_s=5.0), state(ONE, up_s=6.0, failures=BROKEN)],
    ],
    ids=["all are", "an old cluster has one", "the others are not for long", "the others will not be"],
)
def test_ready_when_one_is_up_and_no_other_is_expected(monkeypatch, states):
    monkeypatch.setattr("scheduler.cluster.directory.POLL", 0.0)
    source = Source(*states, None)
    asyncio.run(WatchedDirectory(source, Clock(50.0)).ready())
    assert source.left == [None]


def test_what_does_not_start_says_why():
    failed = state(failures={"replica-0": ("not_found", "no model 'huge'")})
    with pytest.raises(NotFound, match="no model 'huge'"):
        asyncio.run(WatchedDirectory(Source(failed), Clock(50.0)).ready())
