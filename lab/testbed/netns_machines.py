"""The machines of a fleet in network namespaces: a verifier, and devices behind their links, with their shares of CPU
and memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from hw_profiles import catalog
from lab.testbed import netem
from lab.testbed.fleet_check import Edge, ask
from lab.testbed.namespaces import Confined, MachineShare, cable, inside, limited, namespace
from lab.testbed.processes import Process
from lab.testbed.prompts import prompts_of

# Device profile -> link profile, as in docker-compose.yml.
DEVICES = {"pi-4": "wifi-busy", "pi-5": "wifi-good", "orin-nano": "5g", "laptop-cpu": "lte"}
WHOLE_CPU = "laptop-cpu"  # its 0.5B draft speed stands for one core here, the others' for their share of it
VERIFIER_PORT, RELAY_PORT, API_PORT = 7411, 7500, 8411
SERVE = ("serve", "--model", "tiny", "--dtype", "float64", "--threads", "1", "--insecure")
EDGE = ("edge", "--draft-model", "tiny-draft", "--threads", "1", "--http", f"127.0.0.1:{API_PORT}")
MAX_TOKENS = 48


def share_of(device: str) -> MachineShare:
    """CPU by the speed of a 0.5B draft, memory as on the board."""
    profile, whole = catalog.device(device), catalog.device(WHOLE_CPU)
    speeds = [each.draft("0.5b").decode_per_s.typical for each in (profile, whole)]
    return MachineShare(round(speeds[0] / speeds[1], 2), profile.memory_gib)


@dataclass
class Machine:
    """One device: where it is, what runs on it."""

    name: str
    link: str  # profile of its link
    space: str  # its namespace
    server: str  # HOST:PORT of the verifier as the device reaches it
    flags: tuple[str, ...]  # further ones of its edge
    held: Confined
    edge: Process | None = None


class Testbed:
    """The namespaces and what runs in them, for as long as the stack is open."""

    devices: Mapping[str, str] = DEVICES

    def __init__(self, stack: ExitStack, name: str) -> None:
        """`name`: what everything on this host that belongs to it begins with."""
        self._stack, self._name = stack, name
        reason = netem.missing()
        self.links = f"links by relays, for netem is missing ({reason})" if reason else "links by netem"
        self._by_kernel = not reason
        self._near = stack.enter_context(namespace(f"{name}-verify"))  # of the server that devices ask
        self.start_servers()
        self.machines = [self._machine(number, *pair) for number, pair in enumerate(self.devices.items())]
        for machine in self.machines:
            self._start_edge(machine)

    @property
    def servers(self) -> Mapping[str, Callable[[], None]]:
        """How each of them is killed and started again, by its name."""
        return {"the verifier": self.restart_verifier}

    def start_servers(self) -> None:
        """All that devices need."""
        self._verifier = self.start([*SERVE, "--listen", f"0.0.0.0:{VERIFIER_PORT}"], self._near)

    def restart_verifier(self) -> None:
        """SIGKILL, and a new one that knows nothing of the old one's sequences."""
        self._verifier.kill()
        self.start_servers()

    def described(self) -> list[str]:
        """What runs where, in lines."""
        held = [f"{each.name} behind {each.link}: {each.held.how}" for each in self.machines]
        return [f"{len(self.machines)} devices and {' and '.join(self.servers)}", self.links, *held]

    def start(self, arguments: Sequence[str], space: str, module: str = "opensled") -> Process:
        """A command in a namespace; returns when it is ready."""
        with inside(space):
            process = Process(arguments, isolated=True, module=module)
        self._stack.enter_context(process).wait_ready(300)
        return process

    def link(self, space: str, other: str, profile: str, number: int, to_port: int = VERIFIER_PORT) -> str:
        """A cable from `space` to the namespace `other`, with a link on it: by the kernel, or by a relay in `space`.

        `number`: of the cable, below 64. Returns HOST:PORT at which `space` reaches port `to_port` of `other`.
        """
        net, near, far = f"10.77.{number}", f"uplink-{number}", f"to-{number}"
        cable(other, far, f"{net}.1/30", space, near, f"{net}.2/30")
        server = f"{net}.1:{to_port}"
        if not self._by_kernel:
            return self._start_relay(space, profile, server, seed=number)
        for where, interface, up in ((space, near, True), (other, far, False)):
            with inside(where):
                netem.apply(catalog.link(profile), interface, up)
        return server

    def _start_relay(self, space: str, profile: str, to: str, seed: int) -> str:
        at = f"127.0.0.1:{RELAY_PORT + seed}"
        flags = ("--profile", profile, "--to", to, "--listen", at, "--seed", str(seed))
        return self.start(flags, space, module="lab.testbed.link_relay").address

    def confine(self, name: str, device: str) -> Confined:
        """The share of `device`, for processes to be put into."""
        return self._stack.enter_context(limited(name, share_of(device)))

    def _machine(self, number: int, device: str, profile: str) -> Machine:
        name = f"{self._name}-{device}"
        space = self._stack.enter_context(namespace(name))
        server, flags = self.link(space, self._near, profile, number), self.flags_of(device, space, number)
        return Machine(device, profile, space, server, flags, self.confine(name, device))

    def flags_of(self, device: str, space: str, number: int) -> tuple[str, ...]:
        """Of device `number`, in its namespace, beside those that all have."""
        return ()

    def _start_edge(self, machine: Machine) -> None:
        with inside(machine.space):
            machine.edge = Process([*EDGE, "--server", machine.server, *machine.flags], isolated=True)
        machine.held.add(machine.edge.process.pid)
        self._stack.enter_context(machine.edge).wait_ready(300)

    def restart_edge(self, name: str) -> None:
        """SIGKILL, and a new process of that device."""
        [machine] = [each for each in self.machines if each.name == name]
        assert machine.edge is not None
        machine.edge.kill()
        self._start_edge(machine)

    def ask(
        self, prompts: int, seed: int, meanwhile: Callable[[list[Edge]], None] | None = None
    ) -> list[Edge]:
        """Every device at the same time, each from inside its namespace; `meanwhile` runs beside that."""
        url = f"http://127.0.0.1:{API_PORT}"
        edges = [
            Edge(machine.name, url, prompts_of(number, prompts, MAX_TOKENS, seed))
            for number, machine in enumerate(self.machines)
        ]
        with ThreadPoolExecutor(len(edges)) as threads:
            jobs = [threads.submit(_ask_inside, *pair) for pair in zip(self.machines, edges)]
            if meanwhile is not None:
                meanwhile(edges)
        for job in jobs:
            job.result()
        return edges


def _ask_inside(machine: Machine, edge: Edge) -> None:
    with inside(machine.space):
        asyncio.run(ask(edge))
