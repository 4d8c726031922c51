"""What the demo on a real model says at its end: the figures in words, or as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opensled_testbed.demo_device import DemoDevice
from opensled_testbed.forcing import total


@dataclass(frozen=True)
class Run:
    """What all devices share."""

    model: str
    dtype: str  # of the server
    bound: float  # logits by which the reference's choice may lead over a token that was written
    seconds: float  # of the whole demo
    totals: dict[str, float]  # of the server


def conclude(devices: Sequence[DemoDevice], run: Run, *, as_json: bool) -> int:
    """Says it; the exit code: 0 only if every text is the one without drafts and the target's own."""
    wrong, unlike = _wrong(devices), sum(device.unlike_plain for device in devices)
    if as_json:
        print(json.dumps(_document(devices, run)))
    else:
        print("\n".join(_lines(devices, run)))
    if wrong or unlike:
        print(f"NOT identical: {unlike} answers changed by drafts, {wrong} not the target's", file=sys.stderr)
    return 1 if wrong or unlike else 0


def _wrong(devices: Sequence[DemoDevice]) -> int:
    return sum(device.paths.count(None) for device in devices)


def _document(devices: Sequence[DemoDevice], run: Run) -> dict[str, Any]:
    flips, lead = total([path for device in devices for path in device.paths])
    reports = [_report(device) for device in devices]
    return {
        "model": run.model,
        "dtype": run.dtype,
        "identical": all(report["unlike_plain"] == 0 for report in reports) and not _wrong(devices),
        "wrong": _wrong(devices),
        "flips": flips,
        "largest_lead": lead,
        "bound": run.bound,
        "seconds": round(run.seconds, 1),
        "devices": reports,
        "server": run.totals,
    }


def _report(device: DemoDevice) -> dict[str, Any]:
    drafted, plain = device.speeds
    gain = round(drafted / plain, 3) if plain else 0.0
    return {**device.report(), "alone": round(drafted, 1), "without_drafts": round(plain, 1), "gain": gain}


def _lines(devices: Sequence[DemoDevice], run: Run) -> list[str]:
    count = sum(len(device.replies) for device in devices)
    same = count - sum(device.unlike_plain for device in devices)
    flips, lead = total([path for device in devices for path in device.paths])
    lines = [
        "tok/s, no drafts, gain: the same questions one at a time, in turns, nothing else asking",
        f"without drafts: {same} of {count} answers are the same, character for character",
        f"plain transformers: would have written {count - _wrong(devices)} of {count} answers",
    ]
    if flips:
        lines[-1] += f", up to {flips} near ties (at most {lead:.4f} logits; bound {run.bound})"
    if lost := [device.name for device in devices if device.speeds[0] < device.speeds[1]]:
        lines.append(f"drafts lost time here: {', '.join(lost)}")
    lines.append(
        "kitchen-hub and robot draft with the target's own weights in 4 bits, so nearly all is accepted"
    )
    lines.append(f"{run.model} in {run.dtype}, {run.totals['steps']:.0f} steps; {run.seconds:.0f} s in all")
    return lines
