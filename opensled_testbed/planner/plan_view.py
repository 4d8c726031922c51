"""The plan in words, as a table for a terminal, and as JSON."""

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isinf
from typing import Any

from hw_profiles import catalog
from hw_profiles.draft_head import HeadProfile
from opensled_testbed.config import MODEL
from opensled_testbed.planner.planning import Plan, PlanRow
from opensled_testbed.planner.trip import mean_s
from opensled_testbed.planner.verdict import details, verdict


def alone(plan: Plan) -> str:
    """What a device does without any server; no capacity of a target, so it stands beside the table."""
    config = plan.config
    speed = catalog.device(config.device).draft(config.draft).decode_per_s.typical
    return f"Without a server the device writes {speed:g} tokens/s of the {config.draft} draft's own text."


WIDEST = 100
HEAD = ("on", "mode", "users", "draft", "tokens", "bound by", "$ per 1M", "device", "gain")
HEAD2 = ("", "", "", "length", "/round", "", "tokens", "Wh/1k", "")
# Where an objective is named, paces differ, and so does what a token draws.
WITH_PACE = ("tokens", "J per"), ("/s each", "token")
LEFT = (0, 1, 5)  # columns of words
LABEL = "All numbers are derived from hardware profiles by the law in docs/planning.md; none was measured."
BEST = {"speed": "fastest", "balanced": "best balanced", "cost": "cheapest", "energy": "most frugal"}
ONE_EACH = "The {} mode of each accelerator; --accelerator NAME shows all modes of one."


def text(plan: Plan, checked: Mapping[str, Any] | None = None) -> str:
    """The verdict first, then the details. `checked`: what the simulator said to the choice."""
    width = min(WIDEST, shutil.get_terminal_size().columns)
    parts = [wrapped(verdict(plan), width), wrapped(details(plan), width)]
    parts += [wrapped(_checked(checked), width)] if checked else []
    rows, rest = _shown(plan)
    parts += [_question(plan), _table(plan, rows, width), *(wrapped(words, width) for words in rest)]
    return "\n\n".join([*parts, wrapped(f"{alone(plan)} {LABEL}", width)])


def _thresholds(rows: Sequence[PlanRow]) -> list[str]:
    """A sentence on those of PipeSD, where it is asked for."""
    told = [
        f"{row.accelerator} R1 {row.tuning.product:g}, R2 {row.tuning.newest:g}" for row in rows if row.tuning
    ]
    return [f"Thresholds of pipesd, whose draft length is the most: {'; '.join(told)}."] if told else []


def _shown(plan: Plan) -> tuple[list[PlanRow], list[str]]:
    """The rows of the table, and sentences on those that it leaves out."""
    if plan.config.accelerator:
        return list(plan.rows), _thresholds(plan.rows)
    best = {name: plan.best(name) for name in plan.accelerators}
    none = [f"{name} ({plan.of(name, 'centralized').binds})" for name, row in best.items() if row is None]
    words = f"No user can be served on {', '.join(none)}."
    compared = {row.accelerator: row for row in plan.rows if row.tuning}
    rows = [row for name, found in best.items() if found for row in (found, compared.get(name)) if row]
    one_each = ONE_EACH.format(BEST[plan.config.objective or "cost"])
    return rows, [one_each, *([words] if none else []), *_thresholds(rows)]


def as_json(plan: Plan, checked: Mapping[str, Any] | None = None) -> dict[str, Any]:
    choice, head = plan.choice, _head(plan)
    return {
        "label": "derived",
        "question": asdict(plan.config),
        "acceptance": asdict(plan.work.acceptance),
        "assumes": {**plan.source._asdict(), "rate": plan.source.rate, "words": plan.source.words},
        "head": _head_json(head) if head else None,
        "rows": [_row_json(plan, row) for row in plan.rows],
        "choice": None if choice is None else {"accelerator": choice.accelerator, "mode": choice.found.mode},
        "verdict": verdict(plan),
        "details": details(plan),
        "simulated": checked,
    }


def _row_json(plan: Plan, row: PlanRow) -> dict[str, Any]:
    gain = plan.gain(row)
    found = asdict(row.found) | {"by_speed": round(row.found.by_speed, 2)}
    cost = asdict(row.cost) if row.cost else None
    if row.tuning:
        found["thresholds"] = [*row.tuning[1:]]
    rest = {"binds": row.binds, "gain": None if isinf(gain) else gain, "draft_wait_s": row.draft_wait}
    pace = {"tokens_per_s": row.pace, "joules_per_token": row.cost.joules_per_token if row.cost else None}
    return {"accelerator": row.accelerator, **found, **rest, "cost": cost, "usd_hour": row.usd_hour, **pace}


def _question(plan: Plan) -> str:
    config, acceptance = plan.config, plan.work.acceptance
    speed = catalog.device(config.device).draft(config.draft).decode_per_s
    link, head = catalog.link(config.link), _head(plan)
    return "\n".join(
        [
            f"{config.pace:g} tokens/s for every user of {config.target}, {config.weight_bits:g}-bit weights, "
            f"{config.context} KV positions each",
            *([f"objective  {config.objective}, at that pace or a faster one"] if config.objective else []),
            f"devices    {config.device}, {config.draft} draft at {speed} tokens/s",
            f"link       {config.link}, {1000 * mean_s(link):.3g} ms there and back on average",
            *([_head_words(head)] if head else []),
            f"acceptance {acceptance.source}; {acceptance.tokens[4]:.2f} tokens a round of 4 drafted",
        ]
    )


def _head(plan: Plan) -> HeadProfile | None:
    """The draft head beside the target; None where a model drafts."""
    config = plan.config
    if config.drafter == MODEL:
        return None
    return HeadProfile.usual(config.drafter, catalog.target(config.target))


def _head_words(head: HeadProfile) -> str:
    return (
        f"head       {head.kind}: {head.length} tokens as good as the draft's, {head.params / 1e9:.2g} B weights, "
        f"{head.kv_bytes / 1024:.3g} KiB a position (derived)"
    )


def _head_json(head: HeadProfile) -> dict[str, Any]:
    """What a head is taken for."""
    sizes = ("kind", "length", "params", "weight_bytes", "kv_bytes", "pass_bytes", "draft_operations")
    return {"label": "derived", **{name: getattr(head, name) for name in sizes}}


def _table(plan: Plan, shown: Sequence[PlanRow], width: int) -> str:
    """As wide as its cells; close together where the terminal is narrow."""
    paced = bool(plan.config.objective)
    rows: list[Sequence[str]] = [(*HEAD, *WITH_PACE[0]), (*HEAD2, *WITH_PACE[1])] if paced else [HEAD, HEAD2]
    for number, row in enumerate(shown):
        first = number == 0 or shown[number - 1].accelerator != row.accelerator
        rows.append((*_cells(plan, row, first), *(_pace_cells(row) if paced else ())))
    widths = [max(map(len, column)) for column in zip(*rows)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= width else " "
    lines = [_line(row, widths, gap) for row in rows]
    return "\n".join([*lines[:2], "-" * max(map(len, lines)), *lines[2:]])


def _line(cells: Sequence[str], widths: Sequence[int], gap: str) -> str:
    aligned = [
        cell.ljust(width) if number in LEFT else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths))
    ]
    return gap.join(aligned).rstrip()


def _cells(plan: Plan, row: PlanRow, first: bool) -> tuple[str, ...]:
    name = row.accelerator if first else ""
    mode = row.found.mode + (" *" if row is plan.choice else "")
    if row.cost is None:
        return (name, mode, "0", "-", "-", row.binds, "-", "-", "-")
    found, gain = row.found, plan.gain(row)
    return (
        name,
        mode,
        str(row.users),
        str(found.draft_length),
        f"{found.tokens_per_round:.2f}",
        row.binds,
        f"{row.cost.usd_per_million_tokens:.2f}",
        f"{row.cost.device_wh_per_1k_tokens:.2f}" if row.cost.device_wh_per_1k_tokens else "-",
        "-" if isinf(gain) else f"{gain:.2f}x",
    )


def _pace_cells(row: PlanRow) -> tuple[str, str]:
    return (f"{row.pace:.1f}", f"{row.cost.joules_per_token:.3g}") if row.cost else ("-", "-")


def _checked(checked: Mapping[str, Any]) -> str:
    users, more = checked["users"], "at least " if checked["users"] == checked["most"] else ""
    return (
        f"Simulated with the recorded requests, their prompts included: {checked['accelerator']}, {checked['mode']}, "
        f"holds {more}{users} users; the law says {checked['law']} to the same requests."
    )


def wrapped(words: str, width: int) -> str:
    """The words in lines of `width` characters."""
    return textwrap.fill(words, width, break_on_hyphens=False, break_long_words=False)
