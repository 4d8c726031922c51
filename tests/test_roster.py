"""Keeping replicas alive and knowing them, without Ray: the scheduler's roster, and a gateway's copy of its table."""

from __future__ import annotations

import asyncio

import pytest

from opensled.errors import EngineError, NotFound, Unreachable
from scheduler.cluster import supervisor as module
from scheduler.cluster.directory import GRACE, WatchedDirectory
from scheduler.cluster.placement import STALE
from scheduler.cluster.supervisor import ClusterSpec, ClusterState, ReplicaSupervisor
from tests.system import until
from tests.test_placement import beat

TWO = ClusterSpec(2, "module:callable", {})


class Clock:
    """Stands until it is set."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


class ByHand:
    """Actors that live until a test ends them; each life beats once, as NAME-LIFE."""

    def __init__(self) -> None:
        self.roster: ReplicaSupervisor | None = None
        self.lives: dict[str, int] = {}
        self.retired: list[str] = []
        self.broken: set[str] = set()
        self._ends: dict[str, asyncio.Event] = {}

    async def lifetime(self, name: str) -> None:
        self.lives[name] = self.lives.get(name, 0) + 1
        if name in self.broken:
            self.roster.failed(name, "model", "no such model")
            return
        self._ends[name] = asyncio.Event()
        self.roster.beat(name, beat(f"{name}-{self.lives[name]}"))
        await self._ends[name].wait()

    async def retire(self, name: str) -> None:
        self.retired.append(name)
        self.end(name)

    def end(self, name: str) -> None:
        if name in self._ends:
            self._ends[name].set()


def run(scenario, spec: ClusterSpec = TWO):
    """`await scenario(roster, actors, clock)` with pauses too short to notice."""

    async def whole():
        actors, clock = ByHand(), Clock()
        actors.roster = ReplicaSupervisor(spec, actors, clock)
        try:
            await asyncio.wait_for(scenario(actors.roster, actors, clock), 20)
        finally:
            await actors.roster.stop()

    asyncio.run(whole())


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.001)
    monkeypatch.setattr(module, "LOOK", 0.001)


def alive(roster: ReplicaSupervisor) -> list[str]:
    return sorted(one.replica for one, _ in roster.table().beats)


def test_as_many_are_started_as_there_should_be():
    async def scenario(roster, actors, clock):
        roster.tend()
        roster.tend()
        await until(lambda: alive(roster) == ["replica-0-1", "replica-1-1"])
        assert actors.lives == {"replica-0": 1, "replica-1": 1}
        assert roster.table().wanted == 2

    run(scenario)


def test_a_dead_one_is_forgotten_at_once_and_started_again():
    async def scenario(roster, actors, clock):
        roster.tend()
        await until(lambda: len(alive(roster)) == 2)
        actors.broken = {"replica-0"}
        actors.end("replica-0")
        await until(lambda: alive(roster) == ["replica-1-1"])
        actors.broken = set()
        await until(lambda: alive(roster)[1:] == ["replica-1-1"] and actors.lives["replica-0"] > 1)

    run(scenario)


def test_a_death_that_is_told_late_takes_nothing_from_the_next_life():
    async def scenario(roster, actors, clock):
        roster.tend()
        await until(lambda: len(alive(roster)) == 2)
        roster.beat("replica-0", beat("reborn"))  # Ray was faster than the news
        actors.broken = {"replica-0"}
        actors.end("replica-0")
        await until(lambda: actors.lives["replica-0"] > 1)
        assert alive(roster) == ["reborn", "replica-1-1"]

    run(scenario)


def test_a_silent_one_is_in_no_table():
    async def scenario(roster, actors, clock):
        roster.beat("replica-0", beat("quiet", at=7.0))  # on a clock of its own
        clock.now += STALE - 0.1
        assert [age for _, age in roster.table().beats] == pytest.approx([STALE - 0.1])
        clock.now += 0.1
        assert roster.table().beats == []

    run(scenario)


def test_one_that_does_not_start_is_told_of_and_tried_again():
    async def scenario(roster, actors, clock):
        actors.broken = {"replica-1"}
        roster.tend()
        await until(lambda: actors.lives.get("replica-1", 0) > 2)
        assert roster.table().failures == {"replica-1": ("model", "no such model")}
        actors.broken = set()
        await until(lambda: len(alive(roster)) == 2)
        assert roster.table().failures == {}

    run(scenario)


def test_renewing_takes_one_after_the_other():
    async def scenario(roster, actors, clock):
        roster.tend()
        await until(lambda: len(alive(roster)) == 2)
        least = 2

        async def watch():
            nonlocal least
            while True:
                least = min(least, len(alive(roster)))
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(watch())
        await roster.restart()
        watching.cancel()
        assert alive(roster) == ["replica-0-2", "replica-1-2"]
        assert actors.retired == ["replica-0", "replica-1"] and least == 1

    run(scenario)


def test_renewing_stops_at_the_first_that_does_not_come_back():
    async def scenario(roster, actors, clock):
        roster.tend()
        await until(lambda: len(alive(roster)) == 2)
        actors.broken = {"replica-0"}
        with pytest.raises(EngineError, match="replica-0 does not come back: no such model"):
            await roster.restart()
        assert actors.retired == ["replica-0"] and alive(roster) == ["replica-1-1"]

    run(scenario)


def test_one_too_many_is_let_go():
    async def scenario(roster, actors, clock):
        roster.beat("replica-2", beat("surplus"))
        roster.beat("replica-2", beat("surplus"))
        await until(lambda: actors.retired == ["replica-2"])
        await until(lambda: alive(roster) == [])

    run(scenario)


def test_a_roster_that_was_stopped_starts_nobody():
    async def scenario(roster, actors, clock):
        roster.tend()
        await until(lambda: len(alive(roster)) == 2)
        await roster.stop()
        roster.tend()
        assert sorted(actors.retired) == ["replica-0", "replica-1"] and alive(roster) == []
        assert sum(actors.lives.values()) == 2

    run(scenario)


def test_nor_does_one_that_was_stopped_before_it_began():
    async def scenario(roster, actors, clock):
        await roster.stop()
        roster.tend()
        await asyncio.sleep(0)
        assert actors.lives == {}

    run(scenario)


class Source:
    """A scheduler's answers, one after the other; None: there is none at the moment."""

    def __init__(self, *tables: ClusterState | None) -> None:
        self.left = list(tables)

    async def __call__(self) -> ClusterState:
        table = self.left.pop(0)
        if table is None:
            raise Unreachable("no scheduler")
        return table


def table(*beats, up_s: float = 60.0, failures=None) -> ClusterState:
    return ClusterState([(one, age) for one, age in beats], failures or {}, 2, up_s)


ONE, OTHER = (beat("a"), 0.0), (beat("b"), 0.0)


def looked(clock: Clock, *tables: ClusterState | None, between: float = 0.0) -> WatchedDirectory:
    directory = WatchedDirectory(Source(*tables), clock)

    async def look():
        for _ in tables:
            await directory.look()
            clock.now += between

    asyncio.run(look())
    return directory


def test_ages_become_times_on_the_readers_clock():
    directory = looked(Clock(), table((beat("a", at=1e9), 0.5)))
    assert [one.at for one in directory.replicas()] == [49.5]


def test_without_a_scheduler_the_last_table_stands():
    clock = Clock()
    directory = looked(clock, table((beat("a"), 0.5)), None, None, between=STALE)
    (one,) = directory.replicas()
    assert one.replica == "a" and clock.now - one.at == pytest.approx(0.5 + STALE)  # of the last wait


def test_a_young_scheduler_has_not_heard_of_everybody():
    young, old = table((beat("b"), 0.0), up_s=1.0), table((beat("b"), 0.0), up_s=STALE)
    assert {one.replica for one in looked(Clock(), table((beat("a"), 0.0)), young).replicas()} == {"a", "b"}
    assert {one.replica for one in looked(Clock(), table((beat("a"), 0.0)), young, old).replicas()} == {"b"}


BROKEN = {"replica-1": ("engine", "no memory left")}


@pytest.mark.parametrize(
    "tables",
    [
        [None, table(ONE, up_s=5.0), table(ONE, up_s=6.0), table(ONE, OTHER, up_s=7.0)],
        [table(up_s=3600.0), table(ONE, up_s=3600.5)],
        [table(ONE, up_s=GRACE - 1), table(ONE, up_s=GRACE - 0.5), table(ONE, up_s=GRACE)],
        [table(ONE, up_s=5.0), table(ONE, up_s=6.0, failures=BROKEN)],
    ],
    ids=["all are", "an old cluster has one", "the others are not for long", "the others will not be"],
)
def test_ready_when_one_is_up_and_nobody_else_expected(monkeypatch, tables):
    monkeypatch.setattr("scheduler.cluster.directory.POLL", 0.0)
    source = Source(*tables, None)
    asyncio.run(WatchedDirectory(source, Clock()).ready())
    assert source.left == [None]


def test_what_does_not_start_says_why():
    failed = table(failures={"replica-0": ("not_found", "no model 'huge'")})
    with pytest.raises(NotFound, match="no model 'huge'"):
        asyncio.run(WatchedDirectory(Source(failed), Clock()).ready())
