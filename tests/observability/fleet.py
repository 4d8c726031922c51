"""Real processes to look at: a server, a relay, two replicas behind a gateway, five devices, and readers at each.

The server's devices are of two tenants; one of them asks its HTTP API, too, without a device.
"""

import asyncio
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from lab.testbed.client import stream_chat
from lab.testbed.processes import Process, free_port
from lab.testbed.prompts import prompts_of
from lab.testbed.replica_cluster import ReplicaCluster
from opensled.core.errors import OpenSledError

MAX_SESSIONS = 4  # of the server: with the burst it refuses some
# Readers more at the first device, for the rest of the time from this share of it on
BURST, BURST_FROM = 2, 0.75
MAX_TOKENS = 64
WEB = "office"  # the tenant that asks the server's own API, too
TENANTS = {"pi-5": "home", "relay": "home", "jetson": "office", "sensor": "office"}  # who calls the server
# name, what it is connected to, drafter, how many readers, what else it is started with
DEVICES = (
    ("pi-5", "server", "llamacpp", 1, ("--stop", "fixed", "--draft-length", "4")),
    ("jetson", "server", "auto", 1, ()),
    ("sensor", "server", "lookup", 1, ("--stop", "fixed", "--draft-length", "6")),
    ("kitchen", "relay", "llamacpp", 1, ("--stop", "fixed", "--draft-length", "4")),
    ("laptop", "gateway", "llamacpp", 2, ("--stop", "fixed", "--draft-length", "3")),
)


@dataclass
class Fleet:
    """What runs."""

    targets: dict  # job -> {instance: HOST:PORT of its metrics}
    urls: dict = field(default_factory=dict)  # device -> its API
    relay: Process | None = None
    web: str = ""  # the server's own API

    def restart_relay(self, pause):
        """Kill it, and start it again on its ports after `pause` seconds."""
        arguments = self.relay.arguments[3:]
        self.relay.kill()
        time.sleep(pause)
        self.relay = Process(arguments, isolated=True)
        self.relay.wait_ready()


@contextmanager
def running():
    """The fleet while inside; readers begin with `read`."""
    with ExitStack() as stack:
        fleet = Fleet({f"opensled-{job}": {} for job in ("server", "relay", "gateway", "device")})
        few = ["--max-sessions", str(MAX_SESSIONS), "--kv-tokens", "600", "--dtype", "float64"]
        serve = ["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1", *few]
        tokens = Path(stack.enter_context(TemporaryDirectory(prefix="opensled-tokens-")))
        (tokens / "all").write_text("".join(f"{_token(of)} {of}\n" for of in {*TENANTS.values()}))
        for name, tenant in TENANTS.items():
            (tokens / name).write_text(_token(tenant))
        for file in tokens.iterdir():
            file.chmod(0o600)
        api = f"127.0.0.1:{free_port()}"
        fleet.web = f"http://{api}"
        serve += ["--http", api, "--tokens", str(tokens / "all"), *_metrics(fleet, "server", "server")]
        server = stack.enter_context(Process(serve, isolated=True))
        each = ["--max-sessions", "8", "--kv-tokens", "4000", *_metrics(fleet, "gateway", "gateway")]
        cluster = stack.enter_context(ReplicaCluster(2, flags=each))
        above = server.wait_ready()
        hub = ["relay", "--upstream", above, "--model", "tiny-hub", "--listen", f"127.0.0.1:{free_port()}"]
        hub += ["--upstream-token-file", str(tokens / "relay"), "--threads", "1", "--kv-tokens", "2000"]
        hub += _metrics(fleet, "relay", "relay")
        fleet.relay = Process(hub, isolated=True)
        stack.callback(lambda: fleet.relay.stop())
        places = {"server": above, "gateway": cluster.address, "relay": fleet.relay.wait_ready()}
        edges = [
            (device[0], stack.enter_context(_device(fleet, device, places, tokens))) for device in DEVICES
        ]
        fleet.urls = {name: f"http://{edge.wait_ready()}" for name, edge in edges}
        yield fleet


def _metrics(fleet, job, name):
    """Flags of a metrics port, and a target for Prometheus."""
    fleet.targets[f"opensled-{job}"][name] = address = f"127.0.0.1:{free_port()}"
    return ["--metrics", address]


def _token(tenant):
    return f"token-of-{tenant}"


def _device(fleet, device, places, tokens):
    name, at, drafter, _, more = device
    more = (*more, "--token-file", str(tokens / name)) if name in TENANTS else more
    flags = ["--server", places[at], "--drafter", drafter, "--http", "127.0.0.1:0", "--threads", "1", *more]
    return Process(["edge", *flags, *_metrics(fleet, "device", name), "--log-level", "error"], isolated=True)


async def read(fleet, seconds):
    """Readers at every device, one answer after another; returns how many answers were complete."""
    until = time.monotonic() + seconds
    readers = [
        _reader(fleet.urls[device[0]], 10 * number + reader, until)
        for number, device in enumerate(DEVICES)
        for reader in range(device[3])
    ]
    readers.append(_reader(fleet.web, 80, until, key=_token(WEB)))
    later = seconds * BURST_FROM
    readers += [_reader(fleet.urls[DEVICES[0][0]], 90 + reader, until, later) for reader in range(BURST)]
    return sum(await asyncio.gather(*readers))


async def _reader(url, number, until, later=0.0, key=""):
    """One reader, who begins `later` seconds from now and comes back after a refusal, as OpenAI's clients do."""
    await asyncio.sleep(later)
    answers, turn = 0, 0
    prompts = prompts_of(number, 60, MAX_TOKENS)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60, trust_env=False) as http:
        while time.monotonic() < until:
            turn += 1
            try:
                async for _ in stream_chat(http, prompts[turn % len(prompts)]):
                    pass
                answers += 1
            except OpenSledError:
                await asyncio.sleep(0.5)
    return answers
