"""What the demo on a real model says at its end: the figures in words, or as JSON."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lab.testbed.demo_device import DemoDevice
from lab.testbed.forcing import total


@dataclass(frozen=True)
class Run:
    """What all devices share."""

    model: str
    dtype: str  # of the server
    bound: float  # logits by which the reference's choice may lead over a token that was written
    seconds: float  # of the whole demo
    totals: dict[str, float]  # of the server
    file_speed: float  # tokens/s of llama.cpp with the model's file alone
    file_same: int  # of the answers that were measured: texts that it writes as well
    busy: str = ""  # what a busy machine does to the figures; "" = it was not


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
        "busy": run.busy,
        "devices": reports,
        "file_alone": {"tokens_per_second": round(run.file_speed, 1), "same_texts": run.file_same},
        "server": run.totals,
    }


def _report(device: DemoDevice) -> dict[str, Any]:
    drafted, plain = device.speeds
    gain = round(drafted / plain, 3) if plain else 0.0
    times = round(device.step_times, 3)
    return {
        **device.report(),
        "step_times": times,
        "alone": round(drafted, 1),
        "without_drafts": round(plain, 1),
        "gain": gain,
    }


def _lines(devices: Sequence[DemoDevice], run: Run) -> list[str]:
    plain = devices[0].speeds[1]
    count = sum(len(device.replies) for device in devices)
    same = count - sum(device.unlike_plain for device in devices)
    flips, lead = total([path for device in devices for path in device.paths])
    ties = f" but for {flips} near ties ({lead:.4f} logits at most, bound {run.bound})" if flips else ""
    lines = [
        f"without drafts: the server writes {same} of {count} answers in the same words, {plain:.1f} tok/s alone",
        f"plain transformers in {run.dtype} agrees with {count - _wrong(devices)} of {count} answers{ties}",
        f"llama.cpp alone, same weights: {run.file_speed:.1f} tok/s, {run.file_same} of {devices[0].alone} answers "
        "the same; the demo",
        "  shows that drafts change no text, not what a large target gains from them",
    ]
    best = max(devices, key=lambda device: device.saved)
    if best.step_times and best.gains and min(best.gains) > 1:  # what one question denies may be noise
        lines.append(
            f"why: {best.name} saves {best.saved:.0%} of the server's steps, and a step takes {best.step_times:.2f} "
            f"times as long with its drafts: 1 / ({1 - best.saved:.2f} x {best.step_times:.2f})"
        )
    if lost := [device.name for device in devices if device.gains and max(device.gains) < 1]:
        lines.append(f"drafts cost more time than they saved: {', '.join(lost)}")
    lines += [f"{device.name}: {device.at_rest}" for device in devices if device.at_rest]
    steps = f"{run.totals['steps']:.0f} steps of the server"
    lines.append(f"{run.model} is small (135 million weights) and often wrong, with drafts and without")
    lines.append(f"{run.dtype}, level exact, {steps}, {run.seconds:.0f} s in all")
    return [*lines, run.busy] if run.busy else lines
