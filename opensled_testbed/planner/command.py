"""`opensled plan`: how many users which accelerator holds, in which mode, at what cost."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opensled.errors import UsageError
from opensled_testbed.baselines import opensled
from opensled_testbed.config import PlanConfig
from opensled_testbed.planner.capacity_law import best, capacity
from opensled_testbed.planner.draft_source import traces_of
from opensled_testbed.planner.mode_map import TARGETS, panels, points
from opensled_testbed.planner.plan_view import as_json, text
from opensled_testbed.planner.planning import (
    Plan,
    baseline_fleet,
    beside,
    fleet_of,
    make_plan,
    prices_of,
    setting_of,
    trade_off_of,
)
from opensled_testbed.planner.setting import recorded

if TYPE_CHECKING:  # the simulator takes a second to load
    from opensled_testbed.planner.hierarchy_plan import HierarchyPlan
    from opensled_testbed.planner.tradeoff_simulated import SimulatedPoint

PICTURES = (".png", ".svg")


def plan(config: PlanConfig) -> int:
    """Print the plan; exit code 0 also where no user can be served."""
    _check(config)
    if config.hierarchy:
        return _plan_hierarchy(config)
    found = make_plan(config)
    checked = _simulated(found) if config.simulate else None
    print(json.dumps(as_json(found, checked), indent=2) if config.json else text(found, checked))
    if config.map:
        _draw(found, Path(config.map).expanduser())
    if config.curve:
        _draw_curve(found, Path(config.curve).expanduser())
    return 0


def _plan_hierarchy(config: PlanConfig) -> int:
    """The chain instead of the mode."""
    from opensled_testbed.planner import hierarchy_view
    from opensled_testbed.planner.hierarchy_plan import make_hierarchy_plan

    for flag, asked in (
        ("--simulate", config.simulate),
        ("--curve", config.curve),
        ("--pipesd", config.pipesd),
    ):
        if asked:
            raise UsageError(f"{flag} is not for --hierarchy, which plans chains; leave one of them out")
    found = make_hierarchy_plan(config)
    print(json.dumps(hierarchy_view.as_json(found), indent=2) if config.json else hierarchy_view.text(found))
    if config.map:
        _draw_hierarchies(found, Path(config.map).expanduser())
    return 0


def _draw_hierarchies(found: HierarchyPlan, path: Path) -> None:
    """The map of chains over hubs and round trips, for the plan's devices and server."""
    from opensled_testbed.planner.hierarchy_map import points
    from opensled_testbed.planner.picture_hierarchy import draw

    draw(points(found.site), path, found)
    print(f"map: {path}", file=sys.stderr)


def _check(config: PlanConfig) -> None:
    for flag, file in (("--map", config.map), ("--curve", config.curve)):
        if file and Path(file).suffix not in PICTURES:
            raise UsageError(f"{flag}: {file!r} must end in {' or '.join(PICTURES)}")
        if file and not Path(file).expanduser().parent.is_dir():
            raise UsageError(f"{flag}: there is no folder {Path(file).expanduser().parent}")


def _simulated(found: Plan) -> dict[str, Any] | None:
    """The choice in the simulator, and the law's word on the very requests that are simulated; None without one."""
    from opensled_testbed.planner.capacity_search import MOST, simulated_capacity

    row = found.choice
    if row is None:
        return None
    pace = row.pace
    traces = traces_of(found.source)
    config = found.config
    mode, length = row.found.mode, row.found.draft_length
    expected = capacity(setting_of(config, row.accelerator, recorded(traces)), mode, length, pace)
    most = min(MOST, expected.kv_fits)
    print(f"simulating {mode} on {row.accelerator}", file=sys.stderr, flush=True)
    users = simulated_capacity(baseline_fleet(config, row), traces, pace, expected.users, most=most)
    place = {"accelerator": row.accelerator, "mode": mode, "draft_length": length}
    return {"label": "simulated", **place, **asdict(users), "most": most, "law": expected.users}


def _draw(found: Plan, path: Path) -> None:
    """The map of the standard targets, or of the plan's own where it names an accelerator."""
    from opensled_testbed.planner.picture import draw

    config = found.config
    own = (fleet_of(config, config.accelerator).server,) if config.accelerator else TARGETS
    servers = panels(targets=own)
    places = points(servers, found.work, config.draft, beside(config))
    draw(places, path, found.work.acceptance.source)
    print(f"map: {path}", file=sys.stderr)


def _draw_curve(found: Plan, path: Path) -> None:
    """What faster reading costs on the plan's accelerator, or on the one it chose; the numbers beside the picture."""
    from opensled_testbed.planner.tradeoff_picture import draw

    config, row = found.config, found.choice
    accelerator = config.accelerator or (row.accelerator if row else "")
    if not accelerator:
        raise UsageError("--curve: no user can be served on any accelerator, so there is nothing to draw")
    curve, numbers = trade_off_of(found, accelerator), path.with_suffix(".json")
    server = _server(found, accelerator) if config.simulate else None
    source = found.work.acceptance.source
    told = {
        "question": asdict(config),
        "acceptance": source,
        **curve.as_json(),
        "simulated": [server.as_json()] if server else [],
    }
    numbers.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    place = (
        f"{config.target}, {config.weight_bits:g}-bit weights, {config.context} KV positions each, on {accelerator}; "
        f"{config.device} on {config.link}"
    )
    draw(curve, server, path, place, source)
    print(f"curve: {path}, {numbers}", file=sys.stderr)


def _server(found: Plan, accelerator: str) -> SimulatedPoint:
    """A server with the users there are, or with half of those whom its own decoding could serve
    at the promised pace: a full server has no choice left."""
    from opensled_testbed.planner.tradeoff_simulated import MOST, simulated_point

    config, traces = found.config, traces_of(found.source)
    fleet = fleet_of(config, accelerator)
    setting = setting_of(config, accelerator, recorded(traces))
    plain = best(setting, "centralized", config.pace).users
    fits = opensled(fleet).server.sessions_that_fit
    users = min(config.users or max(1, plain // 2), MOST, fits)
    print(f"simulating {users} users", file=sys.stderr, flush=True)
    return simulated_point(fleet.of_users(users), traces, config.pace, prices_of(config, setting))
