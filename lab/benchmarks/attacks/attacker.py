"""The attacker's process: it attacks from one core between two signals, and says what it did."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from typing import NamedTuple

from lab.benchmarks.attacks.connection import Lost, Peer
from lab.benchmarks.attacks.floods import Tally
from lab.benchmarks.attacks.kinds import ATTACKS, Work
from lab.benchmarks.program import SPAWN, spawned
from opensled.core.errors import OpenSledError

AGAIN_S = 0.02  # after a lost connection
END_S = 10.0  # that an attacker takes to end


class Attacker(NamedTuple):
    """A running process."""

    start: Event
    stop: Event
    told: Pipe

    def result(self) -> Tally:
        """What it did, once it has been stopped."""
        if not self.told.poll(END_S):
            raise OpenSledError("the attacker does not end; this machine is too busy to measure on")
        tally: Tally = self.told.recv()
        return tally


@contextmanager
def attacker(name: str, peer: Peer, core: int) -> Iterator[Attacker]:
    """A process that is ready to attack."""
    here, there = SPAWN.Pipe()
    start, stop = SPAWN.Event(), SPAWN.Event()
    process = spawned(_main, name, peer, core, start, stop, there)
    try:
        here.recv()  # it has loaded what it needs
        yield Attacker(start, stop, here)
    finally:
        process.kill()
        process.join()


def _main(name: str, peer: Peer, core: int, start: Event, stop: Event, told: Pipe) -> None:
    os.sched_setaffinity(0, {core})
    attack = ATTACKS[name]
    tallies = [Tally() for _ in range(attack.connections)]
    threads = [threading.Thread(target=_again, args=(attack.work, peer, stop, tally)) for tally in tallies]
    told.send("ready")
    if attack.before is not None:
        _again(attack.before, peer, start, Tally())
    start.wait()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(tallies, Tally())
    total["ms"] = int(1000 * (time.monotonic() - began))
    told.send(total)


def _again(work: Work, peer: Peer, stop: Event, tally: Tally) -> None:
    """Attack anew on a new connection whenever one is lost."""

    def running() -> bool:
        return not stop.is_set()

    while running():
        try:
            work(peer, running, tally)
        except (Lost, OSError):
            tally["connections lost"] += 1
            stop.wait(AGAIN_S)
