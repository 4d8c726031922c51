"""Outcomes of attacks as a table, and as a figure of docs/benchmarks."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.benchmarks import program
from lab.benchmarks.attacks.front import has_kernel_rules
from lab.benchmarks.attacks.kinds import ATTACKS
from lab.benchmarks.attacks.measured import MIN_SHARE, Outcome, Windows
from lab.benchmarks.figure import Comparison, Figure

HEAD = (
    *("attack", "attacker", "victim, tokens/s", "kept", "kept per CPU s", "longest stall, s"),
    *("wait for Opened, ms", "memory, MiB: before, most, 10 s after", "wrong", "refused", "broken off"),
)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    return program.table(HEAD, [_cells(outcome) for outcome in outcomes])


def _cells(outcome: Outcome) -> tuple[str, ...]:
    attack, record = ATTACKS[outcome.name], outcome.record
    return (
        outcome.name,
        f"{outcome.attack_rate:,.0f} {attack.unit}/s",
        f"{outcome.before:.0f} to {outcome.during:.0f}",
        f"{outcome.share:.2f}",
        f"{outcome.work_share:.2f}",
        f"{outcome.stall:.2f} ({outcome.stall_before:.2f})",
        f"{_ms(outcome.wait_before)} to {_ms(outcome.wait)}",
        f"{outcome.memory_before:.0f}, +{outcome.memory_peak - outcome.memory_before:.0f}, "
        f"{outcome.memory_after - outcome.memory_before:+.0f}",
        str(sum(count for _, count in record.wrong)),
        str(len(record.refused)),
        str(len(record.broken)),
    )


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1000 * seconds:.0f}"


def document(
    name: str,
    outcomes: Sequence[Outcome],
    windows: Windows,
    checkout: Path,
    front: int | None,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """What is written as NAME.json."""
    behind = front is not None
    kernel = " and its nftables rules" if behind and has_kernel_rules() else ", without its nftables rules"
    way = f" through the HAProxy of deploy/front on core {front}{kernel}" if behind else ""
    figure = Figure(
        title="Attacks on availability" + (", behind the front" if behind else ""),
        unit="tokens/s",
        more_is_better=True,
        compared=(
            "A tenant that reads one answer of the tiny target after another, while another tenant attacks"
            f"{way}, against the same reader just before the attack. Server and reader have core 0, the attackers "
            f"core 1. A new server for each attack; {windows.before:g} s before, {windows.during:g} s of attack, "
            f"{windows.after:g} s after it. Every answer is compared with the text of a server without "
            "attackers. `facts` has the attackers' rates, the longest stalls and the server's resident memory."
        ),
        loses="Every attack costs something: its bytes are received, by the one core that the server has here.",
        samples=_samples(outcomes),
        ratios=tuple(
            Comparison(name, f"{name}: during", f"{name}: before", MIN_SHARE)
            for name in dict.fromkeys(outcome.name for outcome in outcomes)
        ),
        facts={
            "commit of the server": _commit(checkout),
            "attacks": [{"name": outcome.name, **outcome.as_json()} for outcome in outcomes],
        },
    )
    return {"figure": name, **figure.as_json(origin)}


def _samples(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for outcome in outcomes:
        samples.setdefault(f"{outcome.name}: before", []).append(outcome.before)
        samples.setdefault(f"{outcome.name}: during", []).append(outcome.during)
    return samples


def _commit(checkout: Path) -> str:
    """Of the server's sources; "" outside a checkout."""
    run = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True)
    return run.stdout.strip()
