"""One attack on a fresh server: before, during and after it, as its victim and the kernel saw it."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab.benchmarks.attacks.attacker import attacker
from lab.benchmarks.attacks.connection import Peer
from lab.benchmarks.attacks.floods import Tally
from lab.benchmarks.attacks.front import fronted
from lab.benchmarks.attacks.kinds import ATTACKS
from lab.benchmarks.attacks.server import ATTACKER, VICTIM, Meter, served
from lab.benchmarks.attacks.victim import Record, reference_text, victim
from opensled.core.errors import OpenSledError

SERVER_CORE, ATTACK_CORE = 0, 1
SOURCE = "127.0.0.2"  # the attackers' address: limits for an address must not hit the victim for what they do
MIN_SHARE = 0.8  # of its rate that a victim keeps


@dataclass(frozen=True)
class Windows:
    """Seconds."""

    before: float = 10.0
    during: float = 10.0
    after: float = 10.0


@dataclass(frozen=True)
class Outcome:
    """What an attack did. Rates in tokens/s, memory in MiB, times in s."""

    name: str
    tally: Tally
    attack_rate: float  # units/s
    before: float  # the victim's rate
    during: float
    work_before: float  # its tokens for each second of the server's processor time
    work_during: float
    stall_before: float
    stall: float
    wait_before: float | None  # median time to an open answer
    wait: float | None  # None = no answer was opened during the attack
    memory_before: float
    memory_peak: float
    memory_after: float
    record: Record
    kept_peak: float = 0.0  # MiB of text that the server kept of the attacker at a time

    @property
    def share(self) -> float:
        """Of its rate that the victim kept."""
        return self.during / self.before

    @property
    def work_share(self) -> float:
        """The same, of tokens for each second of processor time: other programs on the machine do not change it."""
        return self.work_during / self.work_before

    def as_json(self) -> dict[str, Any]:
        attack = ATTACKS[self.name]
        facts = {
            "attack": attack.does,
            f"attacker, {attack.unit}/s": self.attack_rate,
            "share of rate kept": self.share,
            "share of tokens a processor second kept": self.work_share,
            "longest stall, s": self.stall,
            "longest stall before, s": self.stall_before,
            "wait for Opened, s": self.wait,
            "wait for Opened before, s": self.wait_before,
            "memory before, MiB": self.memory_before,
            "memory, most more during, MiB": self.memory_peak - self.memory_before,
            "memory, more 10 s after, MiB": self.memory_after - self.memory_before,
        }
        counts = {
            "answers checked": len(self.record.right),
            "wrong tokens": sum(count for _, count in self.record.wrong),
            "answers refused": len(self.record.refused),
            "answers broken off": len(self.record.broken),
            "attacker": {key: value for key, value in sorted(self.tally.items()) if key != "ms"},
        }
        kept = {"kept text, most MiB": _short(self.kept_peak)} if attack.quota else {}
        return {name: _short(value) for name, value in facts.items()} | kept | counts


def _short(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


def measure(
    name: str,
    checkout: Path,
    windows: Windows,
    reference: tuple[int, ...],
    front: int | None = None,
    flags: Sequence[str] = (),
) -> Outcome:
    """Attack a new server of the sources in `checkout`, with these flags besides; through a front on core `front`."""
    with ExitStack() as stack:
        attack = ATTACKS[name]
        kept = Path(stack.enter_context(TemporaryDirectory())) / "kept" if attack.quota else None
        unflagged: dict[str, object] = {"shared_address": front is not None}  # docs/operations.md
        if kept:
            flags, unflagged["keep_text_mb"] = (*flags, "--keep-text", str(kept)), attack.quota
        server = stack.enter_context(served(checkout, SERVER_CORE, attack.limits, *flags, **unflagged))
        honest = Peer(server.address, VICTIM)
        beside: list[int] = []
        if front is not None:
            honest, process = stack.enter_context(fronted(honest, front))
            beside += [process] if front == SERVER_CORE else []
        hostile = replace(honest, token=ATTACKER, source=SOURCE)
        meter = stack.enter_context(Meter(server.process.pid, beside, kept))
        reader = stack.enter_context(victim(honest, SERVER_CORE, attack.readers, reference))
        enemy = stack.enter_context(attacker(name, hostile, ATTACK_CORE))
        marks = [(time.monotonic(), meter.cpu())]
        time.sleep(windows.before)
        marks.append((time.monotonic(), meter.cpu()))
        enemy.start.set()
        time.sleep(windows.during)
        marks.append((time.monotonic(), meter.cpu()))
        enemy.stop.set()
        tally = enemy.result()
        ended = time.monotonic()
        time.sleep(windows.after)
        return _outcome(name, tally, marks, ended, meter, reader.record())


def _outcome(
    name: str, tally: Tally, marks: list[tuple[float, float]], ended: float, meter: Meter, record: Record
) -> Outcome:
    (start, idle), (begun, middle), (over, busy) = marks
    if not record.tokens(start, begun):
        raise OpenSledError(
            "the victim read nothing before the attack; this machine is too busy to measure on"
        )
    return Outcome(
        name,
        tally,
        attack_rate=1000 * tally[ATTACKS[name].unit] / tally["ms"],
        before=record.rate(start, begun),
        during=record.rate(begun, over),
        work_before=record.tokens(start, begun) / (middle - idle),
        work_during=record.tokens(begun, over) / max(busy - middle, 0.01),
        stall_before=record.longest_stall(start, begun),
        stall=record.longest_stall(begun, over),
        wait_before=record.wait(start, begun),
        wait=record.wait(begun, over),
        memory_before=meter.at(begun),
        memory_peak=meter.peak(begun, ended),
        memory_after=meter.at(time.monotonic()),
        record=record,
        kept_peak=meter.kept_peak,
    )


def reference(checkout: Path) -> tuple[int, ...]:
    """The victim's text without an attack."""
    with served(checkout, SERVER_CORE, "") as server:
        return reference_text(Peer(server.address, VICTIM))
