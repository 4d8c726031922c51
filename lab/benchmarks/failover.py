"""How long answers stop when a part of the server is killed or replaced, and whether they stay the target's own."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.benchmarks.figure import Figure
from lab.testbed.replica_cluster import READY_S, REPLICA, SCHEDULER, ReplicaCluster
from opensled.core.errors import OpenSledError
from tests.crowd import Crowd, Question, Resumption, User, judge, questions

USERS, REPLICAS = 16, 2
MODES = {"direct": False, "proxy": True}

Scenario = Callable[[ReplicaCluster, Crowd], Awaitable[None]]


async def kill_replicas(cluster: ReplicaCluster, crowd: Crowd) -> None:
    """SIGKILL to one replica after another, each when there is a new one at work in the place of the one before it."""
    for victim in cluster.pids(REPLICA):
        await kill_replica(cluster, crowd, victim)


async def kill_replica(cluster: ReplicaCluster, crowd: Crowd, victim: int) -> None:
    """SIGKILL to the replica with this process id; ends when another one has its place and has answered."""
    await crowd.live()
    cluster.kill(victim)
    await _replaced(cluster, victim)
    await crowd.another_answer()


async def roll_replicas(cluster: ReplicaCluster, crowd: Crowd) -> None:
    """A rolling restart: every replica is drained and replaced, one after another."""
    await crowd.live()
    before = cluster.pids(REPLICA)
    cluster.roll()
    await _replaced(cluster, *before)
    await crowd.live()


async def kill_scheduler(cluster: ReplicaCluster, crowd: Crowd) -> None:
    """SIGKILL to the actor that knows where the replicas are."""
    await crowd.live()
    (old,) = cluster.pids(SCHEDULER)
    cluster.kill(old)
    await _until(lambda: cluster.pids(SCHEDULER) not in ([], [old]))
    await crowd.live()


async def restart_gateway(cluster: ReplicaCluster, crowd: Crowd) -> None:
    """SIGKILL to the gateway, and another one on the same port. No answer begins while there is none."""
    await crowd.live()
    crowd.stop_asking()
    await asyncio.to_thread(cluster.restart_gateway)


async def _replaced(cluster: ReplicaCluster, *gone: int) -> None:
    """Until all replicas are up, none of them with the id of a process in `gone`."""
    await _until(lambda: len(set(cluster.pids(REPLICA)) - set(gone)) == cluster.replicas)


SCENARIOS: dict[str, Scenario] = {
    "replicas killed": kill_replicas,
    "rolling restart": roll_replicas,
    "scheduler killed": kill_scheduler,
    "gateway restarted": restart_gateway,
}


@dataclass(frozen=True)
class ScenarioOutcome:
    """What became of all answers of a scenario."""

    users: list[User]

    @property
    def answers(self) -> int:
        return sum(len(user.told) for user in self.users)

    @property
    def identical(self) -> int:
        """Answers that are, token for token, the target's own."""
        return sum(sum(user.right) for user in self.users)

    @property
    def errors(self) -> list[str]:
        return [error for user in self.users for error in user.errors]

    @property
    def resumptions(self) -> list[Resumption]:
        return [each for user in self.users for each in user.resumptions]

    def as_json(self) -> dict[str, Any]:
        seconds = sorted(each.seconds for each in self.resumptions)
        return {
            "users": len(self.users),
            "answers": self.answers,
            "identical": self.identical,
            "failed": len(self.errors),
            "resumed": len(seconds),
            "most round trips to resume": max((each.opens for each in self.resumptions), default=0),
            "longest standstill, s": round(seconds[-1], 3) if seconds else 0.0,
        }


async def run(
    scenario: Scenario, cluster: ReplicaCluster, users: int, asked: Sequence[Question]
) -> ScenarioOutcome:
    """Break what the scenario breaks under so many users.

    Raises OpenSledError when an answer failed, or is not, token for token, what the target alone writes.
    """
    await _until(lambda: len(cluster.pids(REPLICA)) == cluster.replicas)
    async with Crowd(cluster.address, users, asked) as crowd:
        await scenario(cluster, crowd)
        await crowd.finish()
    await asyncio.to_thread(judge, crowd.users)
    outcome = ScenarioOutcome(crowd.users)
    if outcome.identical < outcome.answers:
        raise OpenSledError(
            f"{outcome.answers - outcome.identical} answers are not the target's own: {outcome.errors}"
        )
    return outcome


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise OpenSledError(f"nothing happened for {READY_S:g} s")
        await asyncio.sleep(0.05)


def measure(quick: bool) -> Figure:
    """Every scenario in both modes; quick: one replica after another killed, direct, with shorter answers."""
    scenarios = dict(list(SCENARIOS.items())[:1]) if quick else SCENARIOS
    modes = {"direct": False} if quick else MODES
    outcomes = {
        f"{mode}, {name}": outcome
        for mode, proxy in modes.items()
        for name, outcome in _outcomes(scenarios, proxy, 48 if quick else 96).items()
    }
    return Figure(
        title="Failover",
        unit="s",
        more_is_better=False,
        compared=(
            f"{USERS} users, each with a separate real drafter, ask one question after another on {REPLICAS} "
            "replicas of the tiny target in float64 on Ray, and while all of them are in mid-answer something is "
            "killed with SIGKILL or replaced. A sample is how long one answer stood still: from its last token before "
            "to the first one after. Every answer is compared, token by token, with what the target alone writes in "
            "plain transformers; `facts` says how many were identical, how many failed, and how many round trips it "
            "took a device at most to find its sequence again. The network is loopback."
        ),
        loses=(
            "The new replica reads the whole sequence once more, so that long prompts wait longer. A gateway that is "
            "killed is missed until it has been started again, by those who stream through it (`--proxy`) and by those "
            "who begin an answer; Ray's part of that start is seconds."
        ),
        samples={
            name: [each.seconds for each in outcome.resumptions] or [0.0]
            for name, outcome in outcomes.items()
        },
        facts={"users": USERS, "replicas": REPLICAS}
        | {name: outcome.as_json() for name, outcome in outcomes.items()},
    )


def _outcomes(scenarios: Mapping[str, Scenario], proxy: bool, max_tokens: int) -> dict[str, ScenarioOutcome]:
    """All scenarios, one after another, on one cluster."""
    asked = questions(8, max_tokens)
    with ReplicaCluster(REPLICAS, proxy=proxy) as cluster:
        return {
            name: asyncio.run(run(scenario, cluster, USERS, asked)) for name, scenario in scenarios.items()
        }
