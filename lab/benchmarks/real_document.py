"""real_prompts.json: raw answers that grow piece by piece, and the figure over them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import write_json
from lab.benchmarks.real_contenders import BOTH, DEFAULT, DEVICE_CORE, NONE, SERVER_CORE
from lab.benchmarks.real_summary import Unit, ordered, rate, runs, shared, summary

REQUIRED = 0.97  # of no drafts, for the default
Raw = dict[str, Any]  # `units` and `pieces`


def read_raw(path: Path | None) -> Raw:
    """What was measured so far; nothing where there is no file, or one of another form."""
    document = json.loads(path.read_text()) if path and path.exists() else {}
    raw: Raw = document.get("raw", {})
    return {"units": [], "pieces": [], **raw}


def key(unit: Unit) -> tuple[str, str, str, int]:
    """Two units of the same key measure the same."""
    return unit["setup"], unit["sampling"], unit["kind"], unit["number"]


def put(raw: Raw, unit: Unit) -> None:
    """Add a unit; an older one of the same key goes."""
    raw["units"] = ordered([*(each for each in raw["units"] if key(each) != key(unit)), unit])


def write(path: Path, raw: Raw) -> dict[str, Any]:
    """The file with the figure over `raw`; returns it."""
    document = finished(raw)
    write_json(path, document)
    return document


def finished(raw: Raw) -> dict[str, Any]:
    """The figure; at least one unit was measured."""
    found = runs(raw["units"])
    samples: dict[str, list[float]] = {}
    ratios: list[Comparison] = []
    for (setup, sampling), units in found.items():
        names = shared(units)
        run = f"{setup}, {sampling}"
        samples |= {f"{run}: {name}": [rate(unit["answers"][name]) for unit in units] for name in names}
        ratios += [_comparison(run, name) for name in names if name not in (NONE, BOTH)]
    figure = Figure(
        title="Real prompts on a real pair",
        unit="tokens/s",
        more_is_better=True,
        compared=_compared(raw),
        loses=(
            "Where each further row of a step costs half as much as the first one (llama.cpp's kernels for 4 bits on "
            "this processor), most drafters lose. Long prompts gain least: reading them is no drafter's business. "
            "Tables and lookup bring little where nothing is repeated."
        ),
        samples=samples,
        ratios=tuple(ratios),
        facts={
            "runs": [
                {"setup": setup, "sampling": sampling, **summary(units)}
                for (setup, sampling), units in found.items()
            ],
            "pieces": len(raw["pieces"]),
        },
    )
    origin = raw["pieces"][-1] if raw["pieces"] else {}
    return {"figure": "real_prompts", **figure.as_json(origin), "raw": raw}


def _comparison(run: str, name: str) -> Comparison:
    required = REQUIRED if name == DEFAULT else None
    return Comparison(f"{run}: {name}", f"{run}: {name}", f"{run}: {NONE}", required)


def _compared(raw: Raw) -> str:
    first: Mapping[str, Any] = raw["units"][0]
    return (
        f"{first['target']} behind `opensled serve` (one thread on core {SERVER_CORE}; set-up `default` as the command "
        f"chooses, others by name) and `opensled edge` (one thread on core {DEVICE_CORE}), against the same without "
        f"drafts. Answers of at most {first['max_tokens']} tokens, one user, from the request to the last token, the "
        "reading of the prompt included; every prompt goes to all contenders in turns. Drafts: "
        f"{_models(raw['units'])}. At level exact all texts are equal, or the run ends with an error."
    )


def _models(units: Sequence[Unit]) -> str:
    found = {name: model for unit in units for name, model in unit["drafts"].items()}
    return ", ".join(f"{name} = {model}" for name, model in found.items()) or "none"
