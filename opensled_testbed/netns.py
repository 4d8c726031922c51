"""A fleet on one host without containers: every machine is a network namespace, every link is real to its processes.

    python -m opensled_testbed.netns [--prompts N]        as root; `make netns-check`

A verifier, and a Pi 4, a Pi 5, an Orin Nano and a laptop, each behind its own link and with its share of CPU and
memory. Every device is asked over its OpenAI API, from inside its namespace. Then the verifier is killed while it
answers, and started again; then one device. Exit code 0 only if every answer is what the target alone writes, but for
the one answer that the killed device could not finish, and if nothing is left behind.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from hw_profiles import catalog
from opensled.errors import OpenSledError, UsageError
from opensled_testbed import netem
from opensled_testbed.fleet_check import Edge, ask, compare, conclude
from opensled_testbed.namespaces import (
    CGROUPS,
    FOLDER,
    Confined,
    MachineShare,
    cable,
    inside,
    limited,
    namespace,
    require,
)
from opensled_testbed.processes import Process, exit_on_signals
from opensled_testbed.prompts import prompts_of

# Device profile -> link profile, as in docker-compose.yml.
DEVICES = {"pi-4": "wifi-busy", "pi-5": "wifi-good", "orin-nano": "5g", "laptop-cpu": "lte"}
WHOLE_CPU = "laptop-cpu"  # its 0.5B draft speed stands for one core here, the others' for their share of it
VICTIM = "pi-5"
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
    space: str  # its namespace
    server: str  # HOST:PORT of the verifier as the device reaches it
    held: Confined
    edge: Process | None = None


class Testbed:
    """The namespaces and what runs in them, for as long as the stack is open."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        """`name`: what everything on this host that belongs to it begins with."""
        self._stack, self._name = stack, name
        reason = netem.missing()
        self.links = f"links by relays, for netem is missing ({reason})" if reason else "links by netem"
        self._by_kernel = not reason
        self._hub = stack.enter_context(namespace(f"{name}-verify"))
        self.machines = [self._machine(number, *pair) for number, pair in enumerate(DEVICES.items())]
        self._verifier = self._start_verifier()
        for machine in self.machines:
            self._start_edge(machine)

    def _machine(self, number: int, device: str, link: str) -> Machine:
        """A namespace with a cable to the verifier's, and its link: by the kernel, or a relay in the namespace."""
        name = f"{self._name}-{device}"
        space = self._stack.enter_context(namespace(name))
        net = f"10.77.{number}"
        cable(self._hub, f"to-{number}", f"{net}.1/30", space, "uplink", f"{net}.2/30")
        held = self._stack.enter_context(limited(name, share_of(device)))
        server = f"{net}.1:{VERIFIER_PORT}"
        if self._by_kernel:
            for where, interface, up in ((space, "uplink", True), (self._hub, f"to-{number}", False)):
                with inside(where):
                    netem.apply(catalog.link(link), interface, up)
        else:
            server = self._start_relay(space, link, server, seed=number)
        return Machine(device, space, server, held)

    def _start_relay(self, space: str, link: str, to: str, seed: int) -> str:
        at = f"127.0.0.1:{RELAY_PORT}"
        flags = ("--profile", link, "--to", to, "--listen", at, "--seed", str(seed))
        with inside(space):
            relay = Process(flags, isolated=True, module="opensled_testbed.link_relay")
        return self._stack.enter_context(relay).wait_ready()

    def _start_verifier(self) -> Process:
        with inside(self._hub):
            verifier = Process([*SERVE, "--listen", f"0.0.0.0:{VERIFIER_PORT}"], isolated=True)
        self._stack.enter_context(verifier).wait_ready()
        return verifier

    def _start_edge(self, machine: Machine) -> None:
        with inside(machine.space):
            machine.edge = Process([*EDGE, "--server", machine.server], isolated=True)
        machine.held.add(machine.edge.process.pid)
        self._stack.enter_context(machine.edge).wait_ready(300)

    def restart_verifier(self) -> None:
        """SIGKILL, and a new one that knows nothing of the old one's sequences."""
        self._verifier.kill()
        self._verifier = self._start_verifier()

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


def _await_answers(edges: Sequence[Edge], count: int, after: int = 0) -> None:
    """Wait until `count` of these edges are in the midst of an answer, with at least `after` finished before."""
    deadline = time.monotonic() + 120
    while sum(edge.writing is not None and len(edge.replies) >= after for edge in edges) < count:
        if time.monotonic() > deadline:
            raise OpenSledError("no answer is under way that could be interrupted; see the errors above")
        time.sleep(0.01)


def _check(testbed: Testbed, prompts: int) -> bool:
    """All four trials; says what came of each."""

    def kill_verifier(edges: list[Edge]) -> None:
        _await_answers(edges, 2)
        testbed.restart_verifier()

    def kill_edge(edges: list[Edge]) -> None:
        _await_answers([edge for edge in edges if edge.name == VICTIM], 1, after=1)
        testbed.restart_edge(VICTIM)

    right = _trial("every device is asked", testbed.ask(prompts, 0))
    right &= _trial("the verifier is killed and restarted", testbed.ask(prompts, 1000, kill_verifier))
    edges = testbed.ask(prompts, 2000, kill_edge)
    [victim] = [edge for edge in edges if edge.name == VICTIM]
    broke_off, victim.error = bool(victim.error), ""
    del victim.prompts[len(victim.replies) :]  # what it could not answer any more
    right &= broke_off & _trial(f"{VICTIM} is killed in the midst of an answer", edges)
    return right & _trial(f"{VICTIM} is back", testbed.ask(prompts, 3000))


def _trial(what: str, edges: list[Edge]) -> bool:
    print(f"\n{what}", flush=True)
    compare(edges)
    return conclude(edges, as_json=False) == 0


def _left_behind(name: str) -> list[str]:
    """Namespaces and control groups that begin with `name`."""
    spaces = FOLDER.glob(f"{name}-*") if FOLDER.exists() else ()
    groups = [folder for pattern in ("", "*/") for folder in CGROUPS.glob(f"{pattern}{name}-*")]
    return [str(path) for path in (*spaces, *groups)]


def run(prompts: int) -> int:
    """The whole check; returns the exit code. Raises OpenSledError when the fleet cannot be built."""
    require()
    exit_on_signals()  # so that no process outlives the check
    name = f"osled{os.getpid()}"
    with ExitStack() as stack:
        started = time.monotonic()
        testbed = Testbed(stack, name)
        print(f"{len(testbed.machines)} devices and a verifier run after {time.monotonic() - started:.0f} s")
        print(testbed.links)
        for machine in testbed.machines:
            print(f"{machine.name} behind {DEVICES[machine.name]}: {machine.held.how}", flush=True)
        right = _check(testbed, prompts)
    left = _left_behind(name)
    print(f"\nleft behind: {', '.join(left) or 'nothing'}")
    return 0 if right and not left else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser("python -m opensled_testbed.netns", description=__doc__)
    parser.add_argument(
        "--prompts", type=int, default=3, metavar="N", help="prompts for each device and trial"
    )
    try:
        prompts = parser.parse_args(arguments).prompts
        if prompts < 2:
            raise UsageError("--prompts must be at least 2: one to answer, and one to break")
        return run(prompts)
    except OpenSledError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
