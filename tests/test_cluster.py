"""Replicas on a real Ray: heartbeats, deaths, renewal; and `opensled serve --replicas`, from its ports to its end."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from lab.testbed.processes import Process
from lab.testbed.replica_cluster import alone
from opensled.cli.main import main
from opensled.core.errors import Unreachable, UsageError
from opensled.net.address import is_loopback
from scheduler.cluster import ray_guard
from scheduler.cluster.placement import STALE
from scheduler.cluster.supervisor import ClusterSpec
from tests.ended import is_alive, require_end
from verify_server.options.serve_config import ServeConfig

REPLICAS = ("replica-0", "replica-1")
TINY = [
    "--model",
    "tiny",
    "--device",
    "cpu",
    "--dtype",
    "float64",
    "--threads",
    "1",
    "--listen",
    "127.0.0.1:0",
]


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator:
    """Two tiny replicas for all tests of this file, which leave every one alive or on its way back."""
    ray_guard.prepare()
    from scheduler.cluster import ray_runtime

    config = ServeConfig(model="tiny", device="cpu", dtype="float64", listen="127.0.0.1:0", threads=1)
    with ExitStack() as stack:
        with alone():
            stack.enter_context(ray_runtime.own_ray(2))
        spec = ClusterSpec(2, "verify_server.cluster.replica:start", asdict(config))
        yield ray_runtime.Cluster(spec)


def pid(actor: str) -> int:
    """The process of an actor that lives."""
    import ray

    from scheduler.cluster.ray_runtime import NAMESPACE

    return ray.get(ray.get_actor(actor, NAMESPACE).__ray_call__.remote(lambda _: os.getpid()))


def kill(actor: str) -> None:
    """End an actor's process without a warning."""
    os.kill(pid(actor), signal.SIGKILL)


@asynccontextmanager
async def watched(cluster):
    """The cluster while its directory is watched, once every replica is up."""
    await asyncio.wait_for(cluster.directory.ready(), 120)
    watching = asyncio.ensure_future(cluster.directory.watch())
    try:
        await asyncio.wait_for(until(lambda: len(ids(cluster)) == 2), 120)
        yield cluster
    finally:
        watching.cancel()


def ids(cluster) -> set[str]:
    return {beat.replica for beat in cluster.directory.replicas()}


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.02)


async def test_replicas_tell_who_and_where_they_are(ray_cluster):
    async with watched(ray_cluster) as cluster:
        first, second = cluster.directory.replicas()
        assert {beat.replica.rpartition("-")[0] for beat in (first, second)} == set(REPLICAS)
        assert len({first.address, second.address, first.inner, second.inner}) == 4
        for beat in (first, second):
            assert beat.model_id == "tiny" and beat.fingerprint and not beat.draining
            assert beat.free_tokens > 0 and beat.prefix_size > 0 and beat.sessions == 0 and beat.places == 256
            assert beat.step_s > 0 and beat.token_s > 0 and beat.queue_s == 0
        before = first.at
        await until(lambda: cluster.directory.replicas()[0].at > before)


async def test_their_processes_are_named(ray_cluster):
    async with watched(ray_cluster):
        titles = [Path(f"/proc/{pid(name)}/cmdline").read_text() for name in REPLICAS]
        assert all(title.startswith("ray::Replica") for title in titles)


async def test_a_killed_replica_leaves_the_table_and_comes_back_as_another(ray_cluster):
    async with watched(ray_cluster) as cluster:
        before = ids(cluster)
        process = pid("replica-0")
        kill("replica-0")
        await until(lambda: len(ids(cluster)) == 1)
        await until(lambda: len(ids(cluster)) == 2)
        assert len(ids(cluster) & before) == 1 and pid("replica-0") != process


async def test_a_killed_scheduler_comes_back_and_knows_the_same_replicas(ray_cluster):
    async with watched(ray_cluster) as cluster:
        before, process, processes = ids(cluster), pid("scheduler"), [pid(name) for name in REPLICAS]
        kill("scheduler")
        killed = time.monotonic()
        while not STALE <= await uptime(cluster) < time.monotonic() - killed:  # it has its own table by then
            if cluster.directory._last.up_s < STALE:  # later, a busy machine may be late with a heartbeat
                assert ids(cluster) == before
            await asyncio.sleep(0.02)
        while {beat.replica for beat, _ in (await cluster._state()).beats} != before:
            await asyncio.sleep(0.02)
        await until(lambda: ids(cluster) == before)
        assert pid("scheduler") != process and [pid(name) for name in REPLICAS] == processes


async def uptime(cluster) -> float:
    """Seconds that the scheduler has been there; 0 = it is not."""
    try:
        return (await cluster._state()).up_s
    except Unreachable:
        return 0.0


@pytest.mark.long
async def test_all_are_renewed_one_after_the_other(ray_cluster):
    async with watched(ray_cluster) as cluster:
        before = ids(cluster)
        renewing = asyncio.ensure_future(cluster.restart())
        while not renewing.done():
            assert cluster.directory.replicas()
            await asyncio.sleep(0.02)
        renewing.result()
        await until(lambda: len(ids(cluster)) == 2 and not ids(cluster) & before)


@pytest.fixture(scope="module")
def served() -> Iterator[Process]:
    with Process(["serve", "--replicas", "1", *TINY], isolated=True) as process:
        process.wait_ready(120)
        yield process


def psutil() -> ModuleType:
    """Ray brings it along, and makes it known when it is imported."""
    ray_guard.prepare()
    import ray  # noqa: F401

    return import_module("psutil")


def popen(*flags: str, program: tuple[str, ...] = ("-m", "opensled")) -> subprocess.Popen:
    """`opensled serve`, with pipes."""
    command = [sys.executable, *program, "serve", *flags]
    environ = {**os.environ, "OPENSLED_NO_CONFIG": "1"}
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def tree(process: subprocess.Popen) -> list:
    """Every process below this one."""
    with suppress(psutil().NoSuchProcess):
        return psutil().Process(process.pid).children(recursive=True)
    return []


def require_gone(processes) -> None:
    for one in processes:
        require_end(one.pid, 60.0)


def test_everything_listens_on_loopback(served):
    listening = [
        (one.name(), link.laddr.ip)
        for one in tree(served.process)
        for link in one.net_connections("tcp")
        if link.status == "LISTEN"
    ]
    assert len(listening) > 6  # Ray's, and two of a replica
    assert [(name, ip) for name, ip in listening if not is_loopback(ip.removeprefix("::ffff:"))] == []


def test_replicas_have_the_priority_of_a_server(served):
    own = tree(served.process)[0].nice()
    nice = {one.name(): one.nice() for one in tree(served.process)}
    replicas = {name: value for name, value in nice.items() if name.startswith("ray::Replica")}
    assert replicas and set(replicas.values()) == {own}


def test_a_ray_with_a_dashboard_is_refused():
    ray_guard.prepare()
    from scheduler.cluster.ray_runtime import _require_no_dashboard

    _require_no_dashboard("")
    with pytest.raises(
        UsageError, match=r"dashboard is on at 127.0.0.1:8265; start Ray with --include-dashboard=false"
    ):
        _require_no_dashboard("127.0.0.1:8265")


def test_at_sigterm_nothing_is_left(served):
    below = tree(served.process)
    assert len(below) > 6
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(60) == 0
    require_gone(below)


@pytest.mark.long
def test_what_does_not_start_ends_the_command_and_leaves_nothing(tmp_path):
    process = popen("--replicas", "2", *TINY, "--model", str(tmp_path / "none"))
    below = set()
    while process.poll() is None:
        below |= set(tree(process))
        time.sleep(0.05)
    words = process.communicate()[1]
    assert process.returncode == 3 and "error: no model" in words, words
    require_gone(below)


@pytest.mark.long
def test_killed_without_a_warning_no_replica_is_left():
    """Two agents of Ray, without a port that anybody needs, take a minute more to see that they are alone."""
    with Process(["serve", "--replicas", "1", *TINY], isolated=True) as process:
        process.wait_ready(120)
        below = [one for one in tree(process.process) if "Agent" not in one.name()]
        process.kill()
        assert len(below) > 6
        require_gone(below)


@pytest.mark.long
def test_what_a_killed_gateway_left_ends_by_name_when_the_next_one_starts(tmp_path):
    log = tmp_path / "log"
    with Process(["serve", "--replicas", "1", *TINY], isolated=True) as process:
        process.wait_ready(120)
        below = tree(process.process)
        process.kill()
    agents = [one for one in below if "Agent" in one.name()]
    assert len(agents) == 2 and any(is_alive(one.pid) for one in agents)
    with Process(["serve", "--replicas", "1", *TINY], isolated=True, log=log) as again:
        again.wait_ready(120)
        require_gone(below)
    [line] = [line for line in log.read_text().splitlines() if "a killed gateway had left of its Ray" in line]
    assert all(str(one.pid) in line for one in agents)


@pytest.mark.long
@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_without_its_ray_a_gateway_ends_with_the_reason(tmp_path, part):
    """A part of Ray and a replica are killed together: the replica could not come back."""
    log = tmp_path / "log"
    with Process(["serve", "--replicas", "2", *TINY], isolated=True, log=log) as process:
        process.wait_ready(120)
        below = tree(process.process)
        victims = [one for one in below if one.name() == part]
        victims += [one for one in below if one.name().startswith("ray::Replica")][:1]
        assert len(victims) == 2
        for one in victims:
            one.kill()
        assert process.process.wait(60) == 1
    assert "where Ray was: this cluster ends with it. Start it again" in log.read_text()


def test_one_server_alone_never_imports_ray():
    told = "import atexit, sys; atexit.register(lambda: print('ray' in sys.modules))"
    process = popen(*TINY, program=("-c", f"{told}; from opensled.cli.main import main; main()"))
    assert process.stdout.readline().startswith("listening on ")
    process.terminate()
    assert process.communicate(timeout=60)[0].split() == ["False"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--replicas", "2", "--listen", "0.0.0.0:0", "--insecure"],
            "is not an address that devices can reach",
        ),
        (["--replicas", "2", "--listen", "[::]:0", "--insecure"], "is not an address that devices can reach"),
        (["--proxy"], "--proxy is for a gateway to replicas: add --replicas N, or --ray-address HOST:PORT"),
        (["--replicas", "2", "--listen", "192.0.2.1:0"], "is reachable by other machines"),
        (["--replicas", "2", "--ray-network", "8.8.8.0/24"], "is not private"),
    ],
)
def test_flags_that_make_no_sense_together(flags, words, capsys):
    assert main(["serve", *TINY, *flags]) == 2
    assert words in capsys.readouterr().err
