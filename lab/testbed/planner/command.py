"""`opensled plan`: what users get from the hardware that someone has, or wants to buy, and who should draft."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw_profiles import catalog
from hw_profiles.describe import contradictions
from lab.testbed.baselines import opensled
from lab.testbed.config import PlanConfig
from lab.testbed.planner.capacity_law import Setting, best
from lab.testbed.planner.mode_map import TARGETS, panels, points
from lab.testbed.planner.planning import (
    PROFILES,
    Machines,
    beside,
    fleet_of,
    from_words,
    machines_of,
    named,
    prices_of,
    setting_of,
    source_of,
    taken_as,
    trade_off_of,
)
from lab.testbed.planner.recorded_drafts import traces_of
from lab.testbed.planner.setting import recorded_work, work_of
from opensled.core.errors import UsageError

if TYPE_CHECKING:  # the simulator takes a second to load
    from lab.testbed.planner.hierarchy_plan import HierarchyPlan
    from lab.testbed.planner.tradeoff_simulated import SimulatedPoint

PICTURES = (".png", ".svg")
# Options that another one gives a meaning
OF_CURVE = ("kwh_usd", "gb_usd")
OF_HIERARCHY = (
    "hub",
    "hub_model",
    "hub_weight_bits",
    "hub_link",
    "answer",
    "hub_acceptance",
    "draft_acceptance",
)


def plan(config: PlanConfig) -> int:
    """Print the plan; exit code 0 also where no user can be served."""
    config = from_words(config)
    _check(config)
    taken, config = taken_as(config), named(config)
    machines = machines_of(config.accelerator) if config.accelerator else None
    if config.hierarchy:
        return _plan_hierarchy(replace(config, accelerator=machines.accelerator if machines else ""), taken)
    told, words = _answer(config, machines) if machines else _comparison(config)
    _print(config, taken, told, words)
    if config.map:
        _draw(config, machines, Path(config.map).expanduser())
    if config.curve and machines:
        draw_curve(config, machines.accelerator, Path(config.curve).expanduser())
    return 0


def _print(config: PlanConfig, taken: list[str], told: dict[str, Any], words: str) -> None:
    """Which profiles were `taken` for other names, the plan, and what the profiles contradict themselves in."""
    typed = [(kind, getattr(config, field)) for field, kind in PROFILES.items()]
    doubts = [line for kind, name in typed if name for line in contradictions(catalog.load(kind, name))]
    told = {"taken_as": taken, "contradictions": doubts, **told}
    print(json.dumps(told, indent=2) if config.json else "\n".join([*taken, words, *doubts]))


def _answer(config: PlanConfig, machines: Machines) -> tuple[dict[str, Any], str]:
    """For one kind of accelerator, as JSON and as text."""
    from lab.testbed.planner import answer_view
    from lab.testbed.planner.answer import make_answer

    found = make_answer(config, machines)
    return answer_view.as_json(found), answer_view.text(found)


def _comparison(config: PlanConfig) -> tuple[dict[str, Any], str]:
    """Of all accelerators, as JSON and as text."""
    from lab.testbed.planner import comparison

    found = comparison.compare(config)
    return comparison.as_json(found), comparison.text(found)


def _plan_hierarchy(config: PlanConfig, taken: list[str]) -> int:
    """The chain instead of who drafts."""
    from lab.testbed.planner import hierarchy_view
    from lab.testbed.planner.hierarchy_plan import make_hierarchy_plan

    if config.curve:
        raise UsageError("--curve is not for --hierarchy, which plans chains; leave one of them out")
    found = make_hierarchy_plan(config)
    _print(config, taken, hierarchy_view.as_json(found), hierarchy_view.text(found))
    if config.map:
        _draw_hierarchies(found, Path(config.map).expanduser())
    return 0


def _draw_hierarchies(found: HierarchyPlan, path: Path) -> None:
    """The map of chains over hubs and round trips, for the plan's devices and server."""
    from lab.testbed.planner.hierarchy_map import points
    from lab.testbed.planner.picture_hierarchy import draw

    draw(points(found.site), path, found)
    print(f"map: {path}", file=sys.stderr)


def _check(config: PlanConfig) -> None:
    """Raises UsageError for what cannot be drawn, and for options that would change nothing."""
    for flag, file in (("--map", config.map), ("--curve", config.curve)):
        if file and Path(file).suffix not in PICTURES:
            raise UsageError(f"{flag}: {file!r} must end in {' or '.join(PICTURES)}")
        if file and not Path(file).expanduser().parent.is_dir():
            raise UsageError(f"{flag}: there is no folder {Path(file).expanduser().parent}")
    if config.curve and not config.accelerator and not config.hierarchy:
        raise UsageError("--curve draws one accelerator: name it with --accelerator")
    _check_use(config, OF_CURVE, bool(config.curve), "goes with --curve")
    server = "goes with --hierarchy; what the target itself runs on is --accelerator"
    _check_use(config, OF_HIERARCHY, config.hierarchy, server)


def _check_use(config: PlanConfig, names: Sequence[str], is_used: bool, words: str) -> None:
    """Raises UsageError for one of `names` that was set and is of no use."""
    for item in fields(config):
        if not is_used and item.name in names and getattr(config, item.name) != item.default:
            raise UsageError(f"--{item.name.replace('_', '-')} {words}")


def _draw(config: PlanConfig, machines: Machines | None, path: Path) -> None:
    """The map of the standard targets, or of the plan's own where it names an accelerator."""
    from lab.testbed.planner.picture import draw

    work = work_of(source_of(config))
    own = (fleet_of(config, machines.accelerator).server,) if machines else TARGETS
    draw(points(panels(targets=own), work, config.draft, beside(config)), path, work.acceptance.source)
    print(f"map: {path}", file=sys.stderr)


def draw_curve(config: PlanConfig, accelerator: str, path: Path) -> None:
    """What faster reading costs on that accelerator, with a simulated server; the numbers beside the picture."""
    from lab.testbed.planner.tradeoff_picture import draw

    work = work_of(source_of(config))
    setting = setting_of(config, accelerator, work)
    if not best(setting, "centralized", config.promised).kv_fits:
        raise UsageError(
            f"--curve: {config.target} does not fit on {accelerator}, so there is nothing to draw"
        )
    curve, numbers = trade_off_of(config, setting), path.with_suffix(".json")
    server, source = _server(config, accelerator, setting), work.acceptance.source
    told = {
        "question": asdict(config),
        "acceptance": source,
        **curve.as_json(),
        "simulated": [server.as_json()],
    }
    numbers.write_text(json.dumps(told, indent=1) + "\n", "utf-8")
    place = (
        f"{config.target}, {setting.cost.target.weight_bits:g}-bit weights, {config.context} KV positions each, on "
        f"{accelerator}; {config.devices} on {config.link}"
    )
    draw(curve, server, path, place, source)
    print(f"curve: {path}, {numbers}", file=sys.stderr)


def _server(config: PlanConfig, accelerator: str, setting: Setting) -> SimulatedPoint:
    """A server with the users there are, or with half of those whom its own decoding could serve
    at the promised pace: a full server has no choice left."""
    from lab.testbed.planner.tradeoff_simulated import MOST, simulated_point

    fleet, source = fleet_of(config, accelerator), source_of(config)
    recorded = setting_of(config, accelerator, recorded_work(source))
    plain = best(recorded, "centralized", config.promised).users
    users = min(config.users or max(1, plain // 2), MOST, opensled(fleet).server.sessions_that_fit)
    print(f"simulating {users} users", file=sys.stderr, flush=True)
    return simulated_point(
        fleet.of_users(users), traces_of(source), config.promised, prices_of(config, setting)
    )
