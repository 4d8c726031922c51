"""remote_drafts.json: raw turns that grow group by group, and the figure over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import write_json
from lab.benchmarks.real_contenders import DEVICE_CORE, SERVER_CORE
from lab.benchmarks.real_document import Raw
from lab.benchmarks.real_summary import Unit, by_kind, mean_ratio, rate
from lab.benchmarks.real_texts import KINDS, MORE_KINDS
from lab.benchmarks.remote_drafts_sides import OURS, OWN, PEER_PLAIN, SERVER, plain_of

FIGURE = "remote_drafts"
LOSES = (
    "With one user a target that waits for each block needs the fewest steps; OpenSLED's server goes on where a draft "
    "is late, as it is while device, draft server and relay share a core. Drafts cost more than they save where a step "
    "over several rows costs much more than one row, as with engine llamacpp on processors; the device rests most of "
    "them there. OpenSLED's answers cross the link to the device, those of the peers stay beside the target."
)


class Run(NamedTuple):
    """What is compared by itself."""

    engine: str  # of both targets
    link: str
    draft: str  # of real_contenders: SELF or DISTILLED
    users: int

    def __str__(self) -> str:
        return f"{self.engine}, {self.link}, {self.draft} draft, {self.users} user{'s' if self.users > 1 else ''}"


def run_of(unit: Unit) -> Run:
    return Run(unit["engine"], unit["link"], unit["draft"], unit["users"])


def unit_of(unit: Unit) -> tuple[Run, str, int]:
    """Two units of the same place measure the same."""
    return run_of(unit), unit["kind"], unit["number"]


def put(raw: Raw, unit: Unit) -> None:
    """Add a unit; an older one of the same place goes."""
    raw["units"] = [*(each for each in raw["units"] if unit_of(each) != unit_of(unit)), unit]


def changed(units: Iterable[Unit]) -> Iterator[str]:
    """Where drafts have changed a text at level exact: never, or a target is wrong."""
    for unit in units:
        for name, answer in unit["answers"].items():
            if unit["way"].endswith("level exact") and answer["other"]:
                texts = len(answer["texts"])
                yield f"{run_of(unit)}: {name}, {unit['kind']}, {answer['other']} of {texts} answers"


def runs(units: Iterable[Unit]) -> dict[Run, list[Unit]]:
    """By run, in the order in which they were begun; kinds in theirs."""
    found: dict[Run, list[Unit]] = {}
    for unit in units:
        found.setdefault(run_of(unit), []).append(unit)
    kinds = (*KINDS, *MORE_KINDS)
    return {
        run: sorted(each, key=lambda unit: (kinds.index(unit["kind"]), unit["number"]))
        for run, each in found.items()
    }


def shared(units: Sequence[Unit]) -> list[str]:
    """The contenders that were asked in every unit."""
    return [name for name in units[0]["answers"] if all(name in unit["answers"] for unit in units)]


def peers_of(units: Sequence[Unit]) -> list[str]:
    """Those that draft."""
    return [name for name in shared(units) if name not in OURS and name != PEER_PLAIN]


def ratio(units: Sequence[Unit], name: str, of: str) -> dict[str, float]:
    """Tokens/s of a user over those of another contender: geometric mean over the kinds with its interval, and the
    lowest and the highest turn."""
    logs = [
        [math.log(rate(unit["answers"][name]) / rate(unit["answers"][of])) for unit in group]
        for group in by_kind(units).values()
    ]
    turns = [math.exp(value) for group in logs for value in group]
    return mean_ratio(logs) | {"lowest": round(min(turns), 3), "highest": round(max(turns), 3)}


def totals(units: Sequence[Unit], name: str) -> dict[str, Any]:
    """What a contender did over all turns; None where it drafted nothing."""
    turns = [unit["answers"][name] for unit in units]

    def total(key: str) -> float:
        return sum(float(each[key]) for each in turns)

    rounds, drafted = total("rounds"), total("drafted")
    return {
        "tokens/s": round(total("tokens") / total("seconds"), 2),
        "steps a token": round(total("steps") / total("tokens"), 3),
        "CPU, ms a token": [
            round(1000 * total(key) / total("tokens"), 1) for key in ("cpu_s", "draft_cpu_s")
        ],
        "tokens a round": round(total("round_tokens") / rounds, 3) if rounds else None,
        "drafted": round(drafted),
        "stood": round(total("accepted") / drafted, 4) if drafted else None,
        "texts": sum(len(each["texts"]) for each in turns),
        "other texts": sum(each["other"] for each in turns),
    }


def summary(run: Run, units: Sequence[Unit]) -> dict[str, Any]:
    """All of one run."""
    names, peers = shared(units), peers_of(units)
    return {
        **run._asdict(),
        "way": units[0]["way"],
        "groups": {kind: len(group) for kind, group in by_kind(units).items()},
        "contenders": {name: totals(units, name) for name in names},
        "over plain": {name: ratio(units, name, plain_of(name)) for name in names if name != plain_of(name)},
        "over peers": {ours: {peer: ratio(units, ours, peer) for peer in peers} for ours in (SERVER, OWN)},
        "load": [
            min(answer["load"] for unit in units for answer in unit["answers"].values()),
            max(answer["load"] for unit in units for answer in unit["answers"].values()),
        ],
    }


def write(path: Path, raw: Raw) -> dict[str, Any]:
    """The file with the figure over `raw`, in place of what was kept meanwhile; returns it."""
    document = finished(raw)
    write_json(path, document)
    path.with_suffix(".part").unlink(missing_ok=True)
    return document


def finished(raw: Raw) -> dict[str, Any]:
    """The figure; at least one unit was measured."""
    found = runs(raw["units"])
    samples: dict[str, list[float]] = {}
    ratios: list[Comparison] = []
    for run, units in found.items():
        series: Callable[[str], str] = f"{run}: {{}}".format
        samples |= {series(name): [rate(unit["answers"][name]) for unit in units] for name in shared(units)}
        ratios += [
            Comparison(f"{run}: {SERVER} over {peer}", series(SERVER), series(peer))
            for peer in peers_of(units)
        ]
    figure = Figure(
        title="Drafts by HTTP, as the closest peers have them",
        unit="tokens/s",
        more_is_better=True,
        compared=_compared(raw["units"]),
        loses=LOSES,
        samples=samples,
        ratios=tuple(ratios),
        facts={"runs": [summary(run, units) for run, units in found.items()], "pieces": len(raw["pieces"])},
    )
    origin = raw["pieces"][-1] if raw["pieces"] else {}
    return {"figure": FIGURE, **figure.as_json(origin), "raw": raw}


def _compared(units: Sequence[Unit]) -> str:
    first: Mapping[str, Any] = units[0]
    drafts = dict.fromkeys(f"{unit['draft']} = {unit['draft_file']}" for unit in units)
    return (
        f"{first['target']} in llama.cpp, one thread on core {SERVER_CORE}: a target that asks a llama-server for a "
        "block of K tokens over HTTP, waits, and verifies it in one pass (llama.cpp's proposed remote draft asks for "
        "3, tightwad for 8), users in turns or all in one pass; against `opensled serve --engine llamacpp` and a "
        "device that asks a llama-server of the same kind, or computes the draft model itself. Draft servers, devices "
        f"and relays are on core {DEVICE_CORE}; the link lies between target and draft server, and between server "
        f"and device. Drafts: {', '.join(drafts)}. Greedy answers of at most {first['max_tokens']} tokens; tokens/s of "
        "a user from the question to the last token, the reading of the prompt included; every prompt goes to all "
        "contenders in turns."
    )
