"""Stage 6: the measured steps as a profile of the card, for simulator and planner.

python -m lab.benchmarks.gpu.profile OUT_FOLDER/6-profile.json > hw_profiles/accelerators/ID.toml

The law is that of `TargetCost`: the weights are read once, or the rows computed, whichever takes longer; then each
text's KV; and an overhead. Bandwidth and overhead are fitted to the steps that read more than they compute.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from hw_profiles import catalog
from hw_profiles.least_squares import non_negative
from hw_profiles.profiles import AcceleratorProfile, Quantity
from lab.benchmarks.gpu.stage import Stage

FEW_ROWS = 64  # up to so many, a step reads longer than it computes
# Name of a card, in part -> the packaged profile that knows its price and its power, which are not measured here
KNOWN = {"H200": "h200", "H100": "h100", "A100": "a100-80", "4090": "rtx-4090", "5090": "rtx-5090"}


class Fit(NamedTuple):
    """What the steps say."""

    bandwidth: float  # bytes/s
    overhead_s: float
    flops: float  # 0 = no step computed longer than it read
    residuals_s: list[float]  # of the steps that were fitted, measured less law


def measure(stage: Stage) -> None:
    """The fit, and the profile where the card is one whose price and power are known."""
    way = _way(stage.read("steps"))
    if way is None:
        stage.tell(skipped="no steps were measured")
        return
    fit = fitted(way)
    stage.tell(fit=fit._asdict(), fitted_to={name: way[name] for name in ("attention", "graphs", "level")})
    facts = stage.read("facts")
    card = facts.get("card", {}).get("name", "")
    known = next((id for part, id in KNOWN.items() if part in card), None)
    if known is None:
        stage.tell(skipped=f"no profile is written for {card!r}: its price and power are not known")
        return
    origin = f"measured by lab/benchmarks/gpu, {stage.document['provenance']['date']}, {card}"
    made = profile_of(catalog.accelerator(known), fit, facts, origin)
    stage.tell(profile={"id": known, **table(made)}, toml=toml(made, origin))


def _way(steps: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first way of the dense target that has enough steps."""
    ways = [way for target in steps.get("targets", [])[:1] for way in target["ways"]]
    return next((way for way in ways if len(_counted(way)) >= 2), None)


def _counted(way: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [step for step in way.get("steps", []) if "seconds" in step]


def fitted(way: Mapping[str, Any]) -> Fit:
    """By least squares over relative errors, so that short steps count as much as long ones."""
    steps = _counted(way)
    few = [step for step in steps if step["rows"] <= FEW_ROWS]
    read = np.array([_bytes(way, step) for step in few])
    seconds = np.array([step["seconds"] for step in few])
    columns = np.stack([read / seconds, 1 / seconds], axis=1)
    scale = columns.max(axis=0)
    scaled = columns / scale
    per_byte, overhead = non_negative(scaled.T @ scaled, scaled.T @ np.ones(len(few))) / scale
    bandwidth = 1 / per_byte if per_byte else float("inf")
    residuals = seconds - (read * per_byte + overhead)
    return Fit(
        bandwidth,
        float(overhead),
        _flops(way, steps, per_byte, overhead),
        [float(each) for each in residuals],
    )


def _bytes(way: Mapping[str, Any], step: Mapping[str, Any]) -> float:
    """That a step reads: all weights, and each text's KV."""
    return float(way["weight_bytes"] + step["texts"] * step["context"] * way["kv_bytes_per_token"])


def _flops(
    way: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], per_byte: float, overhead: float
) -> float:
    """Of the steps with many rows that take clearly longer than they read; two FLOP for each weight and row."""
    weights = way["weight_bytes"] * per_byte
    found = []
    for step in steps:
        kv = (_bytes(way, step) - way["weight_bytes"]) * per_byte
        computing = step["seconds"] - overhead - kv
        if step["rows"] > FEW_ROWS and computing > 1.1 * weights:
            found.append(step["rows"] * way["weight_bytes"] / computing)  # bfloat16: 2 FLOP for 2 bytes
    return median(found) if found else 0.0


def profile_of(
    known: AcceleratorProfile, fit: Fit, facts: Mapping[str, Any], origin: str
) -> AcceleratorProfile:
    """The packaged profile with what was measured in place of what was derived."""
    copy, matrix = facts["copy_bytes_per_s"], facts["bf16_matrix_flops"]
    flops = fit.flops or matrix
    how = "fitted to its steps of many rows" if fit.flops else "a product of two 8192 x 8192 matrices"
    spread = (min(fit.residuals_s), max(fit.residuals_s))
    overhead = [max(0.0, 1000 * (fit.overhead_s + each)) for each in (spread[0], 0.0, spread[1])]
    quantities: dict[str, Any] = {
        "bandwidth_gb_s": _quantity(
            [fit.bandwidth / 1e9, fit.bandwidth / 1e9, max(fit.bandwidth, copy) / 1e9],
            f"{origin}: fitted to the engine's steps; max: a copy",
        ),
        "tflops": _quantity([flops / 1e12, flops / 1e12, max(flops, matrix) / 1e12], f"{origin}: {how}"),
        "step_overhead_ms": _quantity(overhead, f"{origin}: fitted to the engine's steps, sampling included"),
    }
    return replace(known, **quantities, rows={}, measured=True)  # rows of others: it has a fit of its own


def _quantity(numbers: Sequence[float], source: str) -> Quantity:
    low, typical, high = (float(f"{each:.4g}") for each in numbers)
    return Quantity(typical, min(low, typical), max(high, typical), source)


def table(profile: AcceleratorProfile) -> dict[str, Any]:
    """Its fields, as in a TOML file."""
    return {key: value for key, value in asdict(profile).items() if key != "id" and value not in (None, {})}


def toml(profile: AcceleratorProfile, origin: str) -> str:
    """The file of a packaged profile."""
    lines = [f"# Bandwidth, FLOP/s and overhead: {origin}; prices and power as before. Prices are dated."]
    for name, value in table(profile).items():
        lines.append(f"{name} = {_spelled(value)}")
    return "\n".join(lines) + "\n"


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        order = ("min", "typical", "max", "source") if "typical" in value else value
        return "{ " + ", ".join(f'"{key}" = {_spelled(value[key])}' for key in order) + " }"
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


if __name__ == "__main__":
    document = json.loads(Path(sys.argv[1]).read_bytes())
    sys.exit(
        sys.stdout.write(document["toml"]) and 0
        if "toml" in document
        else f"no profile: {document['skipped']}"
    )
