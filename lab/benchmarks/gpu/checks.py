"""Checks of a stage: each is a result, also where it fails or breaks off, and none hides those behind it."""

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lab.benchmarks.gpu.stage import Stage

MIN_S = 2.0  # seconds that must be left for one more check
LINES = 8  # of a traceback, the last ones


class Check(NamedTuple):
    """Something that must hold."""

    name: str
    run: Callable[[], dict[str, Any]]  # what it found, "holds" among it


def run_checks(stage: Stage, checks: Sequence[Check]) -> None:
    """Runs them in their order while there is time, and writes after each; `left_out` names those without."""
    for check in checks:
        if stage.left < MIN_S:
            stage.tell(left_out=[*stage.document.get("left_out", []), check.name])
        else:
            _add(stage, {"name": check.name, **found_by(check.run)})


def found_by(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a check found, with its seconds; an exception is a result that does not hold."""
    began = time.perf_counter()
    try:
        found = run()
    except Exception as error:
        traceback.print_exc()
        found = {"holds": False, **said(error)}
    return {**found, "seconds": round(time.perf_counter() - began, 2)}


def said(error: Exception) -> dict[str, Any]:
    """What an exception says, for a reader who was not there."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": lines[-LINES:]}


def _add(stage: Stage, found: dict[str, Any]) -> None:
    checks = [*stage.document.get("checks", []), found]
    failed = [each["name"] for each in checks if not each["holds"]]
    stage.tell(checks=checks, failed=failed, holds=not failed)
