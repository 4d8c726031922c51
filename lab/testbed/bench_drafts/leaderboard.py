"""`python -m lab.testbed.bench_drafts.leaderboard`: the table of docs/leaderboard.md from the files of docs/leaderboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.benchmarks.program import table
from lab.testbed.bench_drafts.rows import USERS
from lab.testbed.bench_drafts.view import BEST

PAGE = Path("docs/leaderboard.md")
HEAD = (
    "machine",
    "model",
    "tokens/s: 1 text",
    "all of 8",
    "step of 8",
    "draft",
    "1st, 4th place",
    "pays at 1, 4, 8",
    "by",
)
BEGIN, END = "<!-- rows -->\n", "<!-- end of rows -->"


def faults(found: Any) -> Iterator[str]:
    """Why a contributed file is none; it is as `opensled bench drafts` wrote it."""
    try:
        levels, origin = found["rows"]["levels"], found["provenance"]
        yield from (f"no {name}" for name in ("machine", "model") if not found[name])
        yield from (f"no {name}" for name in ("command", "version", "date", "ended") if not origin[name])
        yield from _number_faults(found, levels)
        if not found["prediction"]["at"][:19] <= origin["ended"][:19]:
            yield "a prediction of later than the end"
        row_of(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        yield f"it is not as the command wrote it: {type(error).__name__} {error}"


def _number_faults(found: dict[str, Any], levels: list[dict[str, Any]]) -> Iterator[str]:
    texts = [level["texts"] for level in levels]
    if texts != sorted(set(texts)) or texts[:1] != [1]:
        yield "rows that do not ascend from 1"
    for level in (*levels, *found["users"]["levels"]):
        if (
            not 0.01 < level["ms"] < 100_000
            or abs(level["tokens_per_s"] * level["ms"] / level["texts"] - 1000) > 10
        ):
            yield f"no speed: {level['ms']} ms with {level['texts']} texts"
    shares = found["acceptance"]["by_place"] if found["acceptance"] else []
    if not all(0 <= share <= 1 for share in shares):
        yield "a share beyond 0 to 1"


def row_of(found: dict[str, Any]) -> list[str]:
    """Its row of the page."""
    levels = {level["texts"]: level for level in found["rows"]["levels"]}
    one, eight, draft = levels[1], levels.get(8), found["acceptance"]
    shares = draft["by_place"] if draft else []
    best = [BEST[found["prediction"]["users"][str(users)]["best"]] for users in USERS]
    return [
        *(found["machine"], found["model"], f"{one['tokens_per_s']:.4g}"),
        *([f"{eight['tokens_per_s']:.4g}", f"{eight['ms'] / one['ms']:.2f}x"] if eight else ["-", "-"]),
        draft["draft"].rpartition(" at ")[0] or draft["draft"] if draft else "-",
        ", ".join(f"{share:.0%}" for share in shares[0:4:3]) or "-",
        ", ".join(best) if draft else "-",
        f"{found['provenance']['date'][:10]}, {found['provenance']['version']}",
    ]


def rows_table(folder: Path) -> str:
    """All rows, by machine and model."""
    found = [row_of(json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]
    return "\n".join(table(HEAD, sorted(found))) + "\n"


def main() -> None:
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + rows_table(PAGE.with_suffix("")) + END + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    main()
