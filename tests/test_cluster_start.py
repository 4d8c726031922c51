"""How a cluster starts, without Ray: who it belongs to, what it takes of a machine, and what is told of what fails."""

import asyncio
from types import SimpleNamespace

import pytest

from opensled.core.errors import Unreachable, UsageError
from scheduler.cluster import ray_guard
from scheduler.cluster.supervisor import ClusterSpec
from verify_server.cluster import cluster_command
from verify_server.options.serve_config import ServeConfig

ray_guard.prepare()
from ray.exceptions import RaySystemError  # noqa: E402

from scheduler.cluster import ray_runtime  # noqa: E402

PAIR = ClusterSpec(2, "module:callable", {})


class Method:
    """One of an actor; `remote` gives what it returns."""

    def __init__(self, function):
        self.remote = function


class Handle:
    """Of a scheduler."""

    def __init__(self, spec, key):
        self.key, self.spec, self.told = Method(lambda: key), Method(lambda: spec), []
        self.report_failure = Method(lambda *words: self.told.append(words))


class FakeRay:
    """A Ray in which another gateway makes the scheduler between our look and our own attempt."""

    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")

    def __init__(self):
        self.scheduler = Handle(PAIR, b"the key of the one who was first")
        self.look = self.nobody

    def nobody(self):
        raise ValueError("no such actor")

    def get_actor(self, name, namespace):
        return self.look()

    def get(self, value):
        return value

    def remote(self, actor):
        return SimpleNamespace(options=lambda **options: SimpleNamespace(remote=lambda *made: self.scheduler))

    def init(self, **options):
        return SimpleNamespace(address_info={"node_ip_address": "127.0.0.1"}, dashboard_url="")

    def shutdown(self):
        pass


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setattr(ray_runtime, "ray", fake)
    return fake


def test_of_two_gateways_that_start_together_both_have_the_schedulers_key(ray):
    assert ray_runtime._ensure_scheduler(PAIR) == (ray.scheduler, b"the key of the one who was first")


def test_any_failure_of_a_start_is_told(ray, monkeypatch):
    def start(config, replica, host, key):
        raise RuntimeError("out of memory")

    ray.look = lambda: ray.scheduler
    monkeypatch.setattr(ray_runtime, "STARTS", SimpleNamespace(get=lambda name: start))
    with pytest.raises(RuntimeError):
        ray_runtime.Replica("replica-0", PAIR, b"key")
    assert ray.scheduler.told == [("replica-0", "engine", "RuntimeError: out of memory")]
    ray.look = ray.nobody
    with pytest.raises(RuntimeError, match="out of memory"):
        ray_runtime.Replica("replica-0", PAIR, b"key")


def test_whatever_ray_says_the_table_is_asked_for_again(ray):
    def broken():
        raise RaySystemError("GCS is away")

    hold = object.__new__(ray_runtime.Cluster)
    hold._scheduler = SimpleNamespace(state=Method(broken))
    ray.look = broken
    with pytest.raises(Unreachable):
        asyncio.run(hold._state())


def test_nodes_that_have_left_are_no_danger(ray, monkeypatch):
    nodes = [{"Alive": True, "NodeManagerAddress": "127.0.0.1"}]
    nodes += [{"Alive": False, "NodeManagerAddress": "8.8.8.8"}]
    ray.nodes = lambda: nodes
    monkeypatch.setattr(ray_guard, "require_token", lambda address: None)
    with ray_runtime.joined_ray("127.0.0.1:6379", ()):
        pass
    nodes[1]["Alive"] = True
    with pytest.raises(UsageError), ray_runtime.joined_ray("127.0.0.1:6379", ()):
        pass


async def test_a_cluster_that_ends_in_order_has_not_lost_its_ray(monkeypatch):
    gone, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    started.set_result(None)

    async def lost(ports):
        await gone.wait()

    async def served(*given):
        return "127.0.0.1:7411", started

    async def stop():
        gone.set()
        await asyncio.sleep(0.01)

    for name, fake in {
        "ray_lost": lost,
        "while_loading": served,
        "_listen": served,
        "leave": pytest.fail,
    }.items():
        monkeypatch.setattr(cluster_command, name, fake)
    cluster = SimpleNamespace(ports=(), directory=SimpleNamespace(ready=None), stop=stop)
    assert await cluster_command._serve(config(listen="127.0.0.1:0"), cluster, None, None) == 0


TWO = {"engine": "vllm", "vllm": "tensor_parallel_size=2 kv_cache_dtype=fp8"}


def config(**fields) -> ServeConfig:
    return ServeConfig(model="tiny", **fields)


@pytest.mark.parametrize(("replicas", "threads", "cpus"), [(2, 0, 8), (12, 0, 12), (4, 3, 12), (1, 2, 8)])
def test_its_own_ray_has_a_cpu_for_each_thread(monkeypatch, replicas, threads, cpus):
    taken = []
    monkeypatch.setattr(cluster_command, "allowed_cpus", lambda: set(range(8)))
    monkeypatch.setattr(ray_runtime, "own_ray", lambda cpus: taken.append(cpus) or memoryview(b""))
    with cluster_command._ray(config(replicas=replicas, threads=threads)):
        pass
    assert taken == [cpus]


@pytest.mark.parametrize(
    ("there", "fields", "each"),
    [
        (4, {"replicas": 4}, 1.0),
        (4, {"replicas": 8, "replica_gpus": 0.5}, 0.5),
        (4, {"replicas": 2, "replica_gpus": 2.0}, 2.0),
        (4, {"replicas": 2, **TWO}, 2.0),
        (4, {"replicas": 2, "replica_gpus": 2.0, **TWO}, 2.0),
        (
            4,
            {"replicas": 2, "replica_gpus": 0.5, **TWO},
            "each of the 2 processes of a replica takes one GPU",
        ),
        (4, {"replicas": 3, **TWO}, "at most 2 do"),
        (4, {"replicas": 9, "device": "cpu"}, 0.0),
        (0, {"replicas": 9}, 0.0),
        (4, {"replicas": 5, "ray_address": "10.0.0.1:6379"}, 1.0),
        (4, {"replicas": 5}, "at most 4 do"),
        (2, {"replicas": 3, "replica_gpus": 0.6}, "at most 2 do"),
        (4, {"replicas": 2, "replica_gpus": 3.0}, "at most 1 do"),
    ],
)
def test_replicas_must_find_gpus_unless_machines_may_still_come(monkeypatch, there, fields, each):
    monkeypatch.setattr(ray_runtime, "gpus_there", lambda: float(there))
    if isinstance(each, float):
        assert cluster_command._spec(config(**fields)).gpus == each
    else:
        with pytest.raises(UsageError, match=each):
            cluster_command._spec(config(**fields))


def test_each_replica_has_its_share_of_the_cpus(monkeypatch):
    monkeypatch.setattr(ray_runtime, "gpus_there", lambda: 0.0)
    monkeypatch.setattr(cluster_command, "allowed_cpus", lambda: set(range(8)))
    assert cluster_command._spec(config(replicas=2)).cpus == 4
    assert cluster_command._spec(config(replicas=1, threads=3)).cpus == 3
    assert cluster_command._spec(config(replicas=2, **TWO)).cpus == 4  # two for each of its processes
    assert cluster_command._spec(config(replicas=2, threads=3, **TWO)).cpus == 6
