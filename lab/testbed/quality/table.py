"""The figures as lines for a terminal."""

from collections.abc import Iterator, Mapping, Sequence

from lab.testbed.load.interval import Interval
from lab.testbed.quality.figures import Row

# title, width
COLUMNS = (
    *(("items", 6), ("right", 8), ("difference in points", 22), ("changed", 9), ("loose", 8)),
    *(("nats", 7), ("repeated", 10), ("tok/round", 11), ("speed", 20)),
)


def table(rows: Mapping[str, Sequence[Row]], names: Mapping[str, str]) -> str:
    """A block for each rule, the baseline first, with its verdict. `names`: the rules with all their options."""
    baseline = next(iter(rows.values()))[-1]
    return "\n\n".join("\n".join(_block(found, names[rule], baseline)) for rule, found in rows.items())


def _block(rows: Sequence[Row], name: str, baseline: Row) -> Iterator[str]:
    """`baseline`: its row over all items."""
    yield name if rows[-1].compared else f"{name} (baseline)"
    width = max(len(row.task) for row in rows) + 1
    yield f"  {'':{width}}" + "".join(f"{title:>{columns}}" for title, columns in COLUMNS)
    for row in rows:
        line = zip(cells(row), COLUMNS, strict=True)
        yield f"  {row.task:{width}}" + "".join(f"{cell:>{columns}}" for cell, (_, columns) in line)
    if rows[-1].compared:
        yield from (f"  {line}" for line in verdict(rows[-1], baseline))


def cells(row: Row) -> list[str]:
    """Of COLUMNS; a dash where there is nothing to compare."""
    found = row.compared
    return [
        str(row.items),
        percent(row.accuracy),
        points(found.difference) if found else "-",
        percent(found.changed) if found else "-",
        percent(row.loose),
        f"{row.nats_per_token:.3f}",
        percent(row.repetition),
        f"{row.tokens_per_round:.2f}",
        times(found.speed) if found else "-",
    ]


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def points(of: Interval) -> str:
    """Percentage points with the ends of the interval."""
    mean, low, high = (f"{100 * value:+.1f}" for value in of)
    return f"{mean} [{low}, {high}]"


def times(of: Interval) -> str:
    """A ratio with the ends of its interval."""
    return f"{of.mean:.2f}x [{of.low:.2f}, {of.high:.2f}]"


def verdict(row: Row, baseline: Row) -> tuple[str, str]:
    """What a rule costs, and what it brings; both rows are over all items."""
    assert row.compared, "the baseline has no verdict"
    found = row.compared
    lost = f"{found.lost} right answers lost, {found.gained} gained"
    rounds = f"{row.tokens_per_round:.2f} tokens a round against {baseline.tokens_per_round:.2f}"
    return (
        f"{row.verdict}: {points(found.difference)} points, {lost}",
        f"{times(found.speed)} the speed, {rounds}",
    )
