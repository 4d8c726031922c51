"""Eight users on two real replicas on Ray: what is killed or replaced under them changes no answer."""

import asyncio

import pytest

from lab.benchmarks.failover import (
    kill_replica,
    kill_replicas,
    kill_scheduler,
    restart_gateway,
    roll_replicas,
    run,
)
from lab.testbed.replica_cluster import REPLICA, ReplicaCluster
from tests.crowd import questions

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


async def kill_replica_at_work(cluster, crowd):
    """One that holds answers. On a busy machine one replica may have measured itself slow, and then gets none."""
    for victim in cluster.pids(REPLICA):
        await kill_replica(cluster, crowd, victim)
        if any(user.resumptions for user in crowd.users):
            return


def outcome_of(scenario, cluster, asked):
    outcome = asyncio.run(asyncio.wait_for(run(scenario, cluster, USERS, asked), PATIENCE))
    assert outcome.errors == []
    assert outcome.identical == outcome.answers >= USERS
    return outcome


def test_a_replica_is_killed_under_eight_answers(cluster, asked):
    outcome = outcome_of(kill_replica_at_work, cluster, asked)
    assert outcome.resumptions


@pytest.mark.long
def test_all_replicas_are_killed_under_eight_answers(cluster, asked):
    outcome = outcome_of(kill_replicas, cluster, asked)
    assert outcome.resumptions


@pytest.mark.long
def test_replicas_are_replaced_under_load(cluster, asked):
    outcome = outcome_of(roll_replicas, cluster, asked)
    assert outcome.resumptions


def test_nobody_notices_that_the_scheduler_is_gone(cluster, asked):
    outcome = outcome_of(kill_scheduler, cluster, asked)
    assert outcome.resumptions == []


def test_a_gateway_comes_back_under_live_answers(cluster, asked):
    outcome = outcome_of(restart_gateway, cluster, asked)
    if cluster.proxy:
        assert all(user.resumptions for user in outcome.users)
    else:
        assert outcome.resumptions == []
