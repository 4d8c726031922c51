"""The output of `opensled top`: a panel for one server, a table for several; plain text as wide as the terminal."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from opensled.cli.top_figures import Figures
from opensled.core.printable import visible_line

LABEL = 10  # columns that the names of a panel's rows take
BAR = 20  # cells of a bar
MODEL = 16  # columns of a model's name in a table
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Column:
    """One of a table."""

    title: str
    width: int
    cell: Callable[[Figures], str]
    total: Callable[[Sequence[Figures]], str] = lambda rows: ""


def frame(found: Sequence[Figures], history: Mapping[str, Sequence[float]], width: int) -> list[str]:
    """Lines of at most `width` columns; `history`: recent tokens/s by server, the newest last."""
    if len(found) == 1:
        lines = panel(found[0], history.get(found[0]["server"], ()), width)
    else:
        lines = table(found, SERVERS, width)
    return [_cut(line, width) for line in lines]


def panel(found: Figures, history: Sequence[float], width: int) -> list[str]:
    """One server with all figures."""
    if "error" in found:
        return [found["server"], f"  {found['error']}"]
    if found["kind"] == "gateway":
        return _gateway(found, width)
    rests = [line for why in found["rests"] for line in wrap(why, max(9, width - LABEL))]
    rows = {
        "sessions": _sessions(found),
        "now": _now(found),
        "tokens": _tokens(found, history),
        "drafts": _drafts(found),
        "hints": [f"{_percent(share)} of {hint}" for hint, share in _in_order(found["hints"])],
        **({"at rest": rests} if rests else {}),
        "steps": _steps(found),
        "KV": _kv(found),
        "refused": _refusals(found),
    }
    state = "draining: takes no new sequences" if found["draining"] else "serving"
    return [_title(found, state), *_rows(rows, width)]


def _title(found: Figures, state: str) -> str:
    return "  ".join(filter(None, [found["server"], found["model"], state]))


def _rows(rows: Mapping[str, Sequence[str]], width: int) -> Iterable[str]:
    """Each row's phrases beside its label, on as many lines as needed."""
    for label, phrases in rows.items():
        lines = [""]
        for phrase in filter(None, phrases or ["none"]):
            if lines[-1] and LABEL + len(lines[-1]) + 2 + len(phrase) > width:
                lines.append("")
            lines[-1] += ("  " if lines[-1] else "") + phrase
        yield f"{label:{LABEL}}{lines[0]}"
        yield from (" " * LABEL + line for line in lines[1:])


def _sessions(found: Figures) -> list[str]:
    return [
        f"{found['sessions']:.0f} of {found['places']:.0f} places",
        _some(found["absent"], ".0f", "without a reader"),
        f"{found['opened_per_s']:.1f} new/s",
        _some(found["resumed_per_s"], ".1f", "resumed/s"),
    ]


def _now(found: Figures) -> list[str]:
    """Sequences in the current step, and what the others wait for."""
    waiting = {reason: count for reason, count in found["waiting"].items() if count}
    present = {reason: count for reason, count in waiting.items() if reason != "absent"}
    in_step = max(0.0, found["sessions"] - sum(present.values()))
    return [
        f"{in_step:.0f} in the step",
        *(f"{count:.0f} {WAITS.get(reason, reason)}" for reason, count in waiting.items()),
    ]


WAITS = {
    "device": "for their devices",
    "step": "came during it",
    "budget": "for their turn",
    "kv": "for KV",
    "reader": "for slow readers",
    "absent": "without a reader",
}


def _tokens(found: Figures, history: Sequence[float]) -> list[str]:
    each = found["tokens_per_s"] / found["sessions"] if found["sessions"] else 0.0
    return [
        f"{found['tokens_per_s']:.1f}/s",
        f"{each:.1f}/s each",
        f"{_percent(found['unasked'])} without a draft" if found["tokens_per_s"] else "",
        sparkline(history),
    ]


def _drafts(found: Figures) -> list[str]:
    if found["acceptance"] is None:
        return []
    return [
        f"{_percent(found['acceptance'])} accepted",
        f"{_number(found['draft_length'], '.1f')} tokens long",
        f"{_percent(found['too_late'])} too late",
    ]


def _steps(found: Figures) -> list[str]:
    if not found["steps_per_s"]:
        return []
    return [
        f"{found['steps_per_s']:.1f}/s",
        f"{_milliseconds(found['step_s'])} ms",
        f"{_number(found['step_sessions'], '.1f')} sessions",
        f"{_number(found['step_tokens'], '.1f')} tokens",
        f"busy {_percent(found['busy'])}",
        f"predicted to within {_percent(found['prediction_error'])}",
    ]


def _kv(found: Figures) -> list[str]:
    return [
        bar(found["kv_used"] or 0.0, found["kv_cached"] or 0.0),
        f"{_percent(found['kv_used'])} of {found['kv_tokens']:,.0f} tokens",
        f"{_percent(found['kv_cached'])} kept for later",
        _some(found["prefix_hits_per_s"], ".0f", "tokens taken over/s"),
        _some(found["kv_evicted_per_s"], ".0f", "tokens evicted/s"),
        _some(found["preemptions_per_s"], ".1f", "sessions displaced/s"),
    ]


def _refusals(found: Figures) -> list[str]:
    codes = [f"{rate:.1f}/s {code}" for code, rate in sorted(found["refused"].items())]
    failures = _some(found.get("failures_per_s", 0.0), ".1f", "failed answers/s")
    return [*(codes or ["none"]), failures]


def _gateway(found: Figures, width: int) -> list[str]:
    rows = {
        "sequences": [
            f"{found['sessions']:.0f} of {found['places']:.0f} places",
            f"{found['placed_per_s']:.1f} placed/s",
            _some(found["resumed_per_s"], ".1f", "of them resumed/s"),
            _some(found["streams_lost_per_s"], ".1f", "streams lost/s"),
        ],
        "refused": _refusals(found),
    }
    replicas = [{"server": name, **each} for name, each in sorted(found["replicas"].items())]
    return [_title(found, "gateway"), *_rows(rows, width), "", *table(replicas, REPLICAS, width)]


def table(rows: Sequence[Figures], columns: Sequence[Column], width: int) -> list[str]:
    """A line for each row; columns that do not fit are left out, from the right."""
    name = max([len("server"), *(len(row["server"]) for row in rows)])
    shown, used = [], name
    for column in columns:
        used += 2 + column.width
        if used > width:
            break
        shown.append(column)
    lines = [_line("server", name, [(each.title, each.width) for each in shown])]
    for row in rows:
        if "error" in row:
            lines.append(f"{row['server']:{name}}  {row['error']}")
        else:
            lines.append(_line(row["server"], name, [(each.cell(row), each.width) for each in shown]))
    alive = [row for row in rows if "error" not in row]
    if len(alive) > 1:
        lines.append(_line("all", name, [(each.total(alive), each.width) for each in shown]))
    return lines


def _line(first: str, width: int, cells: Iterable[tuple[str, int]]) -> str:
    return f"{first:{width}}" + "".join(f"  {text:>{room}}" for text, room in cells)


def _sum(key: str, spelling: str) -> Callable[[Sequence[Figures]], str]:
    return lambda rows: format(sum(row.get(key) or 0.0 for row in rows), spelling)


SERVERS = (
    Column("sessions", 8, lambda row: f"{row['sessions']:.0f}", _sum("sessions", ".0f")),
    Column("tokens/s", 8, lambda row: _number(row.get("tokens_per_s"), ".1f"), _sum("tokens_per_s", ".1f")),
    Column("accepted", 8, lambda row: _percent(row.get("acceptance"))),
    Column("step ms", 7, lambda row: _milliseconds(row.get("step_s"))),
    Column("KV", 5, lambda row: _percent(row.get("kv_used"))),
    Column("refused/s", 9, lambda row: f"{row['refused_per_s']:.1f}", _sum("refused_per_s", ".1f")),
    Column("batch", 5, lambda row: _number(row.get("step_sessions"), ".1f")),
    Column("waiting", 7, lambda row: f"{sum(row.get('waiting', {}).values()):.0f}"),
    Column("busy", 5, lambda row: _percent(row.get("busy"))),
    Column("off by", 6, lambda row: _percent(row.get("prediction_error"))),
    Column("state", 8, lambda row: "draining" if row.get("draining") else row["kind"]),
    Column("model", MODEL, lambda row: row["model"][:MODEL]),
)
REPLICAS = (
    Column("sessions", 8, lambda row: f"{row['sessions']:.0f}", _sum("sessions", ".0f")),
    Column("places", 6, lambda row: f"{row['places']:.0f}", _sum("places", ".0f")),
    Column("placed/s", 8, lambda row: f"{row['placed_per_s']:.1f}", _sum("placed_per_s", ".1f")),
    Column("step ms", 7, lambda row: _milliseconds(row["step_s"])),
    Column("queue ms", 8, lambda row: _milliseconds(row["queue_s"])),
    Column("KV free", 9, lambda row: f"{row['kv_tokens_free']:,.0f}", _sum("kv_tokens_free", ",.0f")),
    Column("state", 8, lambda row: "draining" if row["draining"] else "serving"),
)


def _some(value: float, spelling: str, words: str) -> str:
    """A phrase, or nothing without a value."""
    return f"{format(value, spelling)} {words}" if value else ""


def bar(used: float, cached: float = 0.0) -> str:
    """A bar: used, then cached, then free."""
    filled = round(BAR * used)
    kept = min(BAR - filled, round(BAR * cached))
    return "█" * filled + "▒" * kept + "░" * (BAR - filled - kept)


def sparkline(values: Sequence[float]) -> str:
    most = max(values, default=0.0)
    return "".join(BLOCKS[round((len(BLOCKS) - 1) * value / most)] if most else BLOCKS[0] for value in values)


def _in_order(hints: Mapping[str, float]) -> list[tuple[str, float]]:
    # Whole numbers, unless a server lies
    return sorted(hints.items(), key=lambda pair: (len(pair[0]), pair[0]))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None, spelling: str) -> str:
    return "-" if value is None else format(value, spelling)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.3g}"


def _cut(line: str, width: int) -> str:
    line = visible_line(line)
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
