"""`opensled plan`: how many users which accelerator holds, in which mode, at what cost."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opensled.errors import UsageError
from opensled_testbed.config import PlanConfig
from opensled_testbed.planner.capacity_law import capacity
from opensled_testbed.planner.draft_source import traces_of
from opensled_testbed.planner.mode_map import TARGETS, panels, points
from opensled_testbed.planner.plan_view import as_json, text
from opensled_testbed.planner.planning import Plan, baseline_fleet, fleet_of, make_plan
from opensled_testbed.planner.setting import of_fleet, recorded

PICTURES = (".png", ".svg")


def plan(config: PlanConfig) -> int:
    """Print the plan; exit code 0 also where no user can be served."""
    _check(config)
    found = make_plan(config)
    checked = _simulated(found) if config.simulate else None
    print(json.dumps(as_json(found, checked), indent=2) if config.json else text(found, checked))
    if config.map:
        _draw(found, Path(config.map).expanduser())
    return 0


def _check(config: PlanConfig) -> None:
    if config.map and Path(config.map).suffix not in PICTURES:
        raise UsageError(f"--map: {config.map!r} must end in {' or '.join(PICTURES)}")
    if config.map and not Path(config.map).expanduser().parent.is_dir():
        raise UsageError(f"--map: there is no folder {Path(config.map).expanduser().parent}")


def _simulated(found: Plan) -> dict[str, Any] | None:
    """The choice in the simulator, and the law's word on the very requests that are simulated; None without one."""
    from opensled_testbed.planner.capacity_search import MOST, simulated_capacity

    row, pace = found.choice, found.config.pace
    if row is None:
        return None
    traces = traces_of(found.source)
    fleet = fleet_of(found.config, row.accelerator)
    mode, length = row.found.mode, row.found.draft_length
    expected = capacity(of_fleet(fleet, recorded(traces)), mode, length, pace)
    most = min(MOST, expected.kv_fits)
    print(f"simulating {mode} on {row.accelerator}", file=sys.stderr, flush=True)
    users = simulated_capacity(baseline_fleet(fleet, row), traces, pace, expected.users, most=most)
    place = {"accelerator": row.accelerator, "mode": mode, "draft_length": length}
    return {"label": "simulated", **place, **asdict(users), "most": most, "law": expected.users}


def _draw(found: Plan, path: Path) -> None:
    """The map of the standard targets, or of the plan's own where it names an accelerator."""
    from opensled_testbed.planner.picture import draw

    config = found.config
    own = (fleet_of(config, config.accelerator).server,) if config.accelerator else TARGETS
    servers = panels(targets=own)
    draw(points(servers, found.work, config.draft), path, found.work.acceptance.source)
    print(f"map: {path}", file=sys.stderr)
