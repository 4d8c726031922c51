"""`python -m lab.testbed.bench_drafts.leaderboard`: docs/leaderboard.md from the files in docs/leaderboard."""

import json
from pathlib import Path
from typing import Any

from lab.benchmarks.program import table
from lab.testbed.bench_drafts.view import PAYS

PAGE = Path("docs/leaderboard.md")
HEAD = (
    "machine",
    "model",
    "tokens/s",
    "8 texts",
    "step of 8",
    "draft",
    "1st, 4th",
    "pays for 1, 4, 8",
    "measured",
)
BEGIN, END = "<!-- rows -->\n", "<!-- end of rows -->"


def row_of(found: dict[str, Any]) -> list[str]:
    """The row of one file, as `opensled bench drafts` wrote it."""
    levels = {level["texts"]: level for level in found["rows"]["levels"]}
    one, eight, draft, predicted = levels[1], levels.get(8), found["acceptance"], found["prediction"]["users"]
    shares = [f"{share:.0%}" for share in draft["by_place"][:4:3]] if draft else []
    return [
        *(found["machine"], found["model"], f"{one['tokens_per_s']:.4g}"),
        *((f"{eight['tokens_per_s']:.4g}", f"{eight['ms'] / one['ms']:.2f}x") if eight else "--"),
        *(draft["draft"].partition(" at ")[0] if draft else "-", ", ".join(shares) or "-"),
        ", ".join(PAYS[tuple(each["pays"])] for each in predicted.values()) if draft else "-",
        found["provenance"]["date"][:10],
    ]


def rows_table(folder: Path) -> str:
    """All rows, by machine and model."""
    found = [row_of(json.loads(path.read_text("utf-8"))) for path in folder.glob("*.json")]
    return "\n".join(table(HEAD, sorted(found))) + "\n"


if __name__ == "__main__":
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    PAGE.write_text(before + BEGIN + rows_table(PAGE.with_suffix("")) + END + rest.partition(END)[2], "utf-8")
