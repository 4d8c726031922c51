"""What doctor.json holds and says: each set-up's prediction beside what users got."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from lab.benchmarks.figure import Figure
from lab.benchmarks.program import table

BOUND = 0.25  # share by which a prediction may be off
CAVEAT = "A user of one kind of text alone gets what that kind brings, which differs more."
HEAD = ("set-up", "foretold", "came", "off by", "without drafts", "accepted", "came, by kind of text")
Found = Mapping[str, Any]  # `predicted` and `measured` of one set-up


def measured_rate(found: Found) -> float:
    """Tokens/s after the first text, of a text with as many tokens of each kind."""
    return statistics.harmonic_mean([*by_kind(found).values()])


def by_kind(found: Found) -> dict[str, float]:
    """Tokens/s by kind of text."""
    kinds: Mapping[str, Sequence[Mapping[str, float]]] = found["measured"]
    return {
        kind: sum(each["tokens"] for each in answers) / sum(each["seconds"] for each in answers)
        for kind, answers in kinds.items()
    }


def error(found: Found) -> float:
    """Of the prediction, as a share of what came."""
    return float(found["predicted"]["rate"]) / measured_rate(found) - 1


def view(found: Found) -> str:
    """One set-up in one line."""
    told = found["predicted"]
    kinds = ", ".join(f"{kind} {rate:.1f}" for kind, rate in by_kind(found).items())
    return (
        f"foretold {told['rate']:.1f}, came {measured_rate(found):.1f} ({error(found):+.0%}); without drafts "
        f"{told['own_rate']:.1f}; {kinds}; the doctor took {told['doctor_s']} s"
    )


def document(setups: Mapping[str, Found], pair: str, origin: Mapping[str, Any]) -> dict[str, Any]:
    """The file: a figure that compares nothing, with the set-ups under `facts`. `pair`: the real one's models."""
    figure = Figure(
        title="The doctor's prediction",
        unit="tokens/s",
        more_is_better=True,
        compared=(
            "For each set-up in one run: the tokens/s that `opensled doctor` foretells after its short answers, and "
            "those of greedy answers of at most 96 tokens over `opensled edge`, from the first text to the end, to "
            "prompts that are none of the doctor's: held-out tasks of the tiny target, the prompts of "
            f"real_prompts.json of the real one ({pair}). Server on core 0, device and reader on core 1."
        ),
        loses=_loses(setups),
        samples={
            f"{name}: {what}": [rate]
            for name, found in setups.items()
            for what, rate in (
                ("foretold", float(found["predicted"]["rate"])),
                ("came", measured_rate(found)),
            )
        },
        facts={
            "bound": BOUND,
            "rows": [_facts(name, found) for name, found in setups.items()],
            "setups": dict(setups),
        },
    )
    return {"figure": "doctor", **figure.as_json(origin)}


def _facts(name: str, found: Found) -> dict[str, Any]:
    """One set-up in figures, for the report."""
    told = found["predicted"]
    return {
        "setup": name,
        "foretold": told["rate"],
        "came": round(measured_rate(found), 3),
        "off_by": round(error(found), 4),
        "own": told["own_rate"],
        "acceptance": told["acceptance"],
        "by_kind": {kind: round(rate, 3) for kind, rate in by_kind(found).items()},
    }


def _loses(setups: Mapping[str, Found]) -> str:
    off = [f"{name} ({error(found):+.0%})" for name, found in setups.items() if abs(error(found)) > BOUND]
    return f"Off by more than {BOUND:.0%}: {'; '.join(off) or 'nowhere'}. {CAVEAT}"


def section(found: Mapping[str, Any]) -> list[str]:
    """For README.md."""
    setups: Mapping[str, Found] = found["facts"]["setups"]
    within = sum(abs(error(each)) <= BOUND for each in setups.values())
    words = f"Tokens/s, {found['label']}; {within} of {len(setups)} predictions are within {BOUND:.0%} of what came."
    rows = [row(name, each) for name, each in setups.items()]
    return ["## What the doctor foretells, and what comes", "", words, "", *table(HEAD, rows), ""]


def row(name: str, found: Found) -> list[str]:
    """As under HEAD."""
    told, kinds = found["predicted"], sorted(by_kind(found).items(), key=lambda each: each[1])
    (low, least), (high, most) = kinds[0], kinds[-1]
    return [
        name,
        f"{told['rate']:.1f}",
        f"{measured_rate(found):.1f}",
        f"{round(error(found), 2) + 0:+.0%}",
        f"{told['own_rate']:.1f}",
        f"{told['acceptance']:.0%} of {told['drafted']}",
        f"{least:.1f} ({low}) to {most:.1f} ({high})",
    ]
