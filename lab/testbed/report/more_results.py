"""Results of a form of their own: the coupling of a real pair, sampling, the baseline of quick runs, and
what the doctor foretells. Each has a table; what has none is linked."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.testbed.report.html import (
    Section,
    code,
    folded,
    origin,
    paragraph,
    prose,
    table,
    text,
)
from lab.testbed.report.results import Result

Content = Mapping[str, Any]


def section(results: Sequence[Result], page_folder: Path) -> Section:
    """One chapter for all of them."""
    return Section("more", "More results", "".join(_shown(each, page_folder) for each in results))


def _shown(result: Result, page_folder: Path) -> str:
    made = TABLES.get(result.path.stem)
    body = made(result.content) if made else paragraph("See the file.")
    return f"<h3>{text(result.title)}</h3>{origin(result, page_folder)}{body}"


def coupling(content: Content) -> str:
    """How often the first draft token stands, by rule and temperature."""
    rules = ("match", "ratio", "optimal")
    rows = [
        [pair, kind, temperature, *(f"{chances[rule]:.0%}" if rule in chances else "–" for rule in rules)]
        for pair, kinds in content["pairs"].items()
        for kind, found in kinds.items()
        for temperature, chances in found.items()
        if isinstance(chances, Mapping)
    ]
    note = paragraph(
        "Share of draft tokens that stand under the rules", code("match"), "and", code("ratio"),
        "and with the optimal coupling, which no rule exceeds.", kind="note",
    )  # fmt: skip
    return note + folded("all pairs", table(["draft", "text", "T", *rules], rows, words=(0, 1)))


def sampling(content: Content) -> str:
    """One call for all sessions against one each."""
    rows = [
        [
            *(cell[name] for name in ("library", "shape", "params", "sessions", "rows", "vocabulary")),
            f"{cell['before_ms']['median']:.3g}",
            f"{cell['after_ms']['median']:.3g}",
            f"{cell['before_ms']['median'] / cell['after_ms']['median']:.2f}x",
        ]
        for cell in content["cells"]
    ]
    shape = ("library", "logits", "parameters", "sessions", "rows", "vocabulary")
    head = [*shape, "one each, ms", "one for all, ms", "gain"]
    note = paragraph(f"Median times of sampling: {content['compared']}.", kind="note")
    return note + folded(f"{len(rows)} shapes of a step", table(head, rows, words=(0, 1, 2)))


def quick_baseline(content: Content) -> str:
    """What `make bench-quick` compares with."""
    rows = [
        [name, content["labels"].get(name, "–"), f"{statistics.median(each):.3g}"]
        for name, each in content["samples"].items()
    ]
    note = paragraph(
        "The ratios that", code("make bench-quick"), "compares with: medians of a short run.", kind="note"
    )
    return note + table(["ratio", "label", "median"], rows, words=(0, 1))


def doctor(content: Content) -> str:
    """The prediction of each set-up beside what came."""
    facts = content["facts"]
    rows = [
        [
            each["setup"],
            *(f"{each[name]:.1f}" for name in ("foretold", "came")),
            f"{round(each['off_by'], 2) + 0:+.0%}",
            f"{each['own']:.1f}",
            f"{each['acceptance']:.0%}",
        ]
        for each in facts["rows"]
    ]
    within = sum(abs(each["off_by"]) <= facts["bound"] for each in facts["rows"])
    told = (
        f"{content['compared']} {within} of {len(rows)} are within {facts['bound']:.0%}. {content['loses']}"
    )
    note = paragraph(prose(told), kind="note")
    return note + table(
        ["set-up", "foretold, tokens/s", "came", "off by", "without drafts", "accepted"], rows
    )


TABLES: Mapping[str, Callable[[Content], str]] = {
    "coupling": coupling,
    "sampling": sampling,
    "quick_baseline": quick_baseline,
    "doctor": doctor,
}
