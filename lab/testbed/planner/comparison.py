"""Where no accelerator is named: what each of them holds at one pace, by the law, the cheapest first."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from hw_profiles import catalog
from lab.testbed.config import PlanConfig
from lab.testbed.planner import setting as settings
from lab.testbed.planner import ways
from lab.testbed.planner.answer_view import LIMITS, WHO, devices_words, drafts_words
from lab.testbed.planner.binding import what_binds
from lab.testbed.planner.page import assumed, columns, table, wrapped
from lab.testbed.planner.planning import bits_of, setting_of, source_of, usd_hour, work_of
from lab.testbed.planner.token_cost import HOUR_S

HEAD = ("on", "bits", "alone", "devices", "server", "both", "draft by", "limited by")
PRICES = ("$ an hour", "$ per 1M")
FOR_USERS = ("needed", "$ an hour")


@dataclass(frozen=True)
class Row:
    """One accelerator."""

    accelerator: str
    weight_bits: float
    users: dict[str, int]  # that one of it holds, by way
    binds: str
    count: int  # that hold the users asked for; 1 where no number is given
    usd_hour: float  # of all of these
    usd_per_million_tokens: float  # with as many users as it holds, or as there are

    @property
    def best(self) -> str:
        return ways.best_way(self.users)


@dataclass(frozen=True)
class Comparison:
    """The accelerators that serve the plan's users, and those that do not."""

    config: PlanConfig
    rows: tuple[Row, ...]  # the cheapest first
    left_out: dict[str, str]  # why, by id


def compare(config: PlanConfig) -> Comparison:
    """`config` has ids of profiles. Raises NotFound or UsageError for what is not known."""
    work = work_of(config)
    rows, left_out = [], {}
    for name in catalog.names("accelerators"):
        row = _row(config, name, work)
        if isinstance(row, Row):
            rows.append(row)
        else:
            left_out[name] = row
    rows.sort(key=lambda row: (row.usd_hour if config.users else row.usd_per_million_tokens, row.accelerator))
    return Comparison(config, tuple(rows), left_out)


def _row(config: PlanConfig, name: str, work: settings.Work) -> Row | str:
    """Or why it serves no user."""
    setting, pace = setting_of(config, name, work), config.promised
    found = ways.held(setting, pace)
    users = {way: each.users for way, each in found.items()}
    most = max(users.values())
    if not most:
        return "no room" if not ways.places(setting, ways.ALONE) else "too slow"
    count = ceil(config.users / most) or 1
    price = count * usd_hour(config, setting)
    tokens = (config.users or most) * pace * HOUR_S
    binds = what_binds(setting, found[ways.best_way(users)], pace)
    return Row(name, bits_of(config, name), users, binds, count, price, 1e6 * price / tokens)


def text(found: Comparison) -> str:
    """The cheapest in a sentence, then all in a table."""
    width = columns()
    parts = [wrapped(verdict(found), width)]
    if found.rows:
        head = f"Users that one holds at {found.config.promised:g} tokens/s each, by who drafts (derived):"
        parts += [wrapped(head, width), _table(found)]
    parts += [wrapped(_left_out(found), width)] if found.left_out else []
    return "\n\n".join([*parts, assumed(_assumptions(found))])


def as_json(found: Comparison) -> dict[str, Any]:
    return {
        "label": "derived",
        "question": asdict(found.config),
        "rows": [{**asdict(row), "who_drafts": row.best} for row in found.rows],
        "left_out": found.left_out,
        "verdict": verdict(found),
        "assumes": {**source_of(found.config)._asdict(), **_assumptions(found)},
    }


def verdict(found: Comparison) -> str:
    """What to take."""
    config = found.config
    if not found.rows:
        return (
            f"No accelerator serves {config.target} at {config.promised:g} tokens/s: ask for a lower --pace, fewer "
            "--weight-bits, a shorter --context or a smaller --target."
        )
    row = found.rows[0]
    if config.users:
        said = f"Cheapest for {config.users} users at {config.promised:g} tokens/s each: "
        said += f"{row.count} x {row.accelerator}"
        price = f"${row.usd_hour:.2f} an hour"
    else:
        said = f"Cheapest by token at {config.promised:g} tokens/s for each user: {row.accelerator}"
        price = f"${row.usd_per_million_tokens:.2f} per million tokens when full"
    drafts = "by the server alone" if row.best == ways.ALONE else f"with drafts by {WHO[row.best]}"
    return f"{said}, {price}, {drafts}. Add --accelerator {row.accelerator} to see what each user gets there."


def _table(found: Comparison) -> str:
    users = found.config.users
    rows = [
        (*_cells(row), str(row.count), f"{row.usd_hour:.2f}")
        if users
        else (*_cells(row), f"{row.usd_hour:.2f}", f"{row.usd_per_million_tokens:.2f}")
        for row in found.rows
    ]
    return table((*HEAD, *(FOR_USERS if users else PRICES)), rows)


def _cells(row: Row) -> Sequence[str]:
    users = [str(row.users.get(way, "-")) for way in ways.WAYS]
    who = "nobody" if row.best == ways.ALONE else row.best
    return (row.accelerator, f"{row.weight_bits:g}", *users, who, LIMITS[row.binds])


def _left_out(found: Comparison) -> str:
    return f"No user is served on {', '.join(f'{name} ({why})' for name, why in found.left_out.items())}."


def _assumptions(found: Comparison) -> dict[str, str]:
    config = found.config
    return {
        "target": f"{catalog.target(config.target).name}, {config.context:,} tokens of context for each user",
        "devices": devices_words(config),
        "drafts": drafts_words(config),
        "numbers": "derived from profiles by the law in docs/planning.md; nine of ten users keep the pace",
    }
