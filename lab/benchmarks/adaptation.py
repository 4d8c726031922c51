"""How much of the acceptance that a draft loses with a shifted target it wins back by adapting.

    nice -n 10 python -m lab.benchmarks.adaptation [--work build/adaptation] [--positions N] [--epochs N] [--out FOLDER]

The shifted target is `tiny`, trained further on its tasks in another style. Along the same held-out prompts: the draft
with `tiny`, the same draft with the shifted target, and with it the draft that was adapted. All steps go on where they
were stopped; the minutes of what was there already are not in those of this run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.benchmarks.program import FOLDER, exit_code, parser_of, say, table, write_json
from lab.testbed.provenance import provenance

if TYPE_CHECKING:
    from lab.training.adapting.config import AdaptConfig
    from lab.training.adapting.pair import Pair

NAME = "adaptation"
WANTED = 0.7  # of the acceptance lost
PROMPTS = 2400  # of which a twentieth is held out
DRAFT, TARGET = "tiny-draft", "tiny"
OWN, LOST, ADAPTED = "with its own target", "with the shifted target", "adapted to it"
CASES = (OWN, LOST, ADAPTED)
FIGURES = ("acceptance", "tokens_per_round")


def main(words: list[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    parser.add_argument("--work", type=Path, default=Path("build/adaptation"), help="default %(default)s")
    parser.add_argument(
        "--positions",
        type=int,
        default=100_000,
        help="tokens that the shifted target writes; default %(default)s",
    )
    parser.add_argument("--epochs", type=int, default=8, help="times to read them; default %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="of torch; default %(default)s")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder; default %(default)s")
    arguments = parser.parse_args(words)
    # Spinning threads starve each other where cores are shared. Read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return exit_code(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    document = {"figure": NAME, "label": "real", "provenance": provenance(), **measured(arguments)}
    write_json(arguments.out / f"{NAME}.json", document)
    print("\n".join(section(document)))
    return 0 if document["recovered"]["acceptance"] >= WANTED else 1


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Raises what `opensled adapt` raises."""
    from lab.training.adapting.config import AdaptConfig
    from lab.training.adapting.material import texts_of
    from lab.training.adapting.pair import load_pair
    from lab.training.adapting.shifted import make_shifted, prompts

    started = time.monotonic()
    shifted = make_shifted(arguments.work)
    say(f"{shifted} is there after {time.monotonic() - started:.0f} s")
    lines = arguments.work / "prompts.txt"
    lines.write_text("".join(f"{line}\n" for line in prompts(PROMPTS)))
    config = AdaptConfig(
        DRAFT,
        str(shifted),
        data=str(lines),
        positions=arguments.positions,
        epochs=arguments.epochs,
        work=str(arguments.work),
        threads=arguments.threads,
    )
    pair = load_pair(DRAFT, str(shifted))
    report = _adapted(pair, config)
    cases = {
        OWN: _own(texts_of(pair, config)[1], config.answer, config.length),
        LOST: report["before"],
        ADAPTED: report["after"],
    }
    return {
        "cases": cases,
        "recovered": {name: recovered(cases, name) for name in FIGURES},
        "adapt": report,
        "shifted": _facts(),
    }


def _adapted(pair: Pair, config: AdaptConfig) -> dict[str, Any]:
    """The report of `opensled adapt`, and its minutes with writing and measuring."""
    from lab.training.adapting.command import adapted

    began = time.monotonic()
    report = adapted(pair, replace(config, out=str(Path(config.work) / "draft")))
    return {**report, "whole_minutes": round((time.monotonic() - began) / 60, 2)}


def _own(prompts: list[list[int]], most: int, length: int) -> list[dict[str, Any]]:
    """The draft with the target that it was made for."""
    from lab.training.adapting.acceptance import accepted, write_texts
    from lab.training.adapting.pair import load_pair
    from lab.training.distil.self_text import ends

    pair = load_pair(DRAFT, TARGET)
    network = pair.source.network
    texts = write_texts(network, prompts, most, ends(network))
    return [accepted(pair.draft, each, length).facts() for each in texts]


def _facts() -> dict[str, Any]:
    """How the shifted target was made."""
    from lab.training.adapting.shifted import RECIPE

    rows, _, length = RECIPE.shape_at(0)
    return {"steps": RECIPE.steps, "positions": RECIPE.steps * rows * length, "rate": RECIPE.peak_lr}


def recovered(cases: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> float:
    """The share of what was lost that came back, of a figure's mean over the temperatures."""
    own, lost, back = (sum(each[name] for each in cases[one]) / len(cases[one]) for one in CASES)
    return round((back - lost) / (own - lost), 4)


def section(document: Mapping[str, Any]) -> list[str]:
    """For a terminal."""
    rows = [
        (
            case,
            f"{each['temperature']:g}",
            f"{each['acceptance']:.3f}",
            f"{each['tokens_per_round']:.2f}",
            places(each),
        )
        for case in CASES
        for each in document["cases"][case]
    ]
    return [
        *table(("the draft", "T", "acceptance", "tokens a round", "by position"), rows),
        _won_back(document["recovered"], document["adapt"]),
    ]


def _won_back(share: Mapping[str, float], report: Mapping[str, Any]) -> str:
    learned = report["learned"]
    return (
        f"{ADAPTED}: won back {share['acceptance']:.0%} of the acceptance lost, {share['tokens_per_round']:.0%} of the "
        f"tokens a round; {learned['weights']:,} weights learned from {learned['tokens']:,} tokens "
        f"({learned['written_tokens']:,} written) in {learned['minutes']:.1f} minutes, {report['whole_minutes']:.1f} "
        "with what else was to be done"
    )


def places(each: Mapping[str, Any]) -> str:
    return ", ".join(f"{share:.2f}" for share in each["by_position"])


if __name__ == "__main__":
    raise SystemExit(main())
