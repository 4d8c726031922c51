"""Eight users on two real replicas on Ray: what is killed or replaced under them changes no answer."""

import asyncio

import pytest

from lab.testbed.replica_cluster import REPLICA, SCHEDULER, ReplicaCluster
from tests.crowd import Crowd, judge, questions

USERS = 8
PATIENCE = 600.0  # seconds; a busy machine takes long to start replicas


# Through the proxy in `make test-long` only: starting and ending a cluster of its own takes most of a minute.
FACES = [pytest.param(False, id="direct"), pytest.param(True, id="proxy", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=FACES)
def cluster(request):
    with ReplicaCluster(2, proxy=request.param) as one:
        one.proxy = request.param
        yield one


@pytest.fixture(scope="module")
def asked():
    return questions(8, 48)


async def kill_replica(cluster, crowd, victim):
    """SIGKILL to the replica with this process id; ends when another one has its place and has answered."""
    await crowd.live()
    cluster.kill(victim)
    await replaced(cluster, victim)
    await crowd.another_answer()


async def kill_replica_at_work(cluster, crowd):
    """One that holds answers. On a busy machine one replica may have measured itself slow, and then gets none."""
    for victim in cluster.pids(REPLICA):
        await kill_replica(cluster, crowd, victim)
        if any(user.resumptions for user in crowd.users):
            return


async def kill_replicas(cluster, crowd):
    """One after another, each when there is a new one at work in the place of the one before it."""
    for victim in cluster.pids(REPLICA):
        await kill_replica(cluster, crowd, victim)


async def roll_replicas(cluster, crowd):
    """A rolling restart: every replica is drained and replaced, one after another."""
    await crowd.live()
    before = cluster.pids(REPLICA)
    cluster.roll()
    await replaced(cluster, *before)
    await crowd.live()


async def kill_scheduler(cluster, crowd):
    """SIGKILL to the actor that knows where the replicas are."""
    await crowd.live()
    (old,) = cluster.pids(SCHEDULER)
    cluster.kill(old)
    await until(lambda: cluster.pids(SCHEDULER) not in ([], [old]))
    await crowd.live()


async def restart_gateway(cluster, crowd):
    """SIGKILL to the gateway, and another one on the same port. No answer begins while there is none."""
    await crowd.live()
    crowd.stop_asking()
    await asyncio.to_thread(cluster.restart_gateway)


async def replaced(cluster, *gone):
    """Until all replicas are up, none of them with the id of a process in `gone`."""
    await until(lambda: len(set(cluster.pids(REPLICA)) - set(gone)) == cluster.replicas)


async def until(condition):
    while not await asyncio.to_thread(condition):
        await asyncio.sleep(0.05)


async def run(scenario, cluster, asked):
    await replaced(cluster)
    async with Crowd(cluster.address, USERS, asked) as crowd:
        await scenario(cluster, crowd)
        await crowd.finish()
    await asyncio.to_thread(judge, crowd.users)
    return crowd.users


def resumed(scenario, cluster, asked):
    """Per user, the times that an answer stood still; every answer is, token for token, the target's own."""
    users = asyncio.run(asyncio.wait_for(run(scenario, cluster, asked), PATIENCE))
    assert [user.errors for user in users] == [[]] * USERS
    right = [right for user in users for right in user.right]
    assert all(right) and len(right) >= USERS
    return [user.resumptions for user in users]


@pytest.mark.parametrize(
    "scenario",
    [
        kill_replica_at_work,
        pytest.param(kill_replicas, marks=pytest.mark.long),
        pytest.param(roll_replicas, marks=pytest.mark.long),
    ],
)
def test_replicas_are_killed_or_replaced_under_eight_answers(cluster, asked, scenario):
    assert any(resumed(scenario, cluster, asked))


def test_nobody_notices_that_the_scheduler_is_gone(cluster, asked):
    assert not any(resumed(kill_scheduler, cluster, asked))


def test_a_gateway_comes_back_under_live_answers(cluster, asked):
    found = resumed(restart_gateway, cluster, asked)
    assert all(found) if cluster.proxy else not any(found)
