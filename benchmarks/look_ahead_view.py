"""What look_ahead.json says, in Markdown: a table, and every bar that had to be reached."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.look_ahead_cells import ADAPTIVE, CENTRALIZED, EVERYTHING, EXPECTED, PLAIN
from benchmarks.program import table
from opensled_testbed.load.interval import Interval, interval

ENOUGH = 0.95  # of centralized decoding, and of the best fixed length
NAMES = {
    PLAIN: "plain SLED",
    ADAPTIVE: "adaptive, no look-ahead",
    EVERYTHING: "all of it",
    CENTRALIZED: "centralized",
}
HEAD = (
    *("cell", *NAMES.values(), "all / plain", "law"),
    *("all / centralized", "simulated", "adaptive / best fixed"),
)

Document = Mapping[str, Any]
Entry = Mapping[str, Any]


class CellVerdict(NamedTuple):
    """One cell against one bar."""

    cell: str
    what: str
    found: Interval
    wanted: float

    @property
    def kept(self) -> bool:
        """Whether what was seen is in keeping with the bar: the interval includes or exceeds it."""
        return self.found.high >= self.wanted

    def __str__(self) -> str:
        mean, low, high = self.found
        word = ("reached" if mean >= self.wanted else "within the interval") if self.kept else "MISSED"
        return f"{self.cell}: {mean:.2f} ({low:.2f} to {high:.2f}) of {self.what}, {self.wanted:g} wanted: {word}"


INTRODUCTION = """\
Tokens/s of one of {users} users, {label}: devices and links by their profiles, drafts as recorded with the tiny
family ({recording}), real servers and streams. Plain SLED drafts blocks of a fixed length, the best of {lengths} by
the law, and waits for each verdict; its server waits for all and pads. `adaptive` decides how much it drafts, down to
nothing; `all of it` also drafts ahead while a verdict travels (token trees and tables are not part
of this emulation). Both are served by policy `goodput`. Ratios are means over users and {repeats} repeats, each user
against himself with the same questions, with 95 % intervals; windows of {hub:g} s (hub) and {dense:g} s (dense-8k).
The law's word was written down {written} at commit `{commit}`, before the first run; * marks where it expects
{expected:g}x plain SLED."""


def section(document: Document) -> list[str]:
    """For README.md; nothing in it is written by hand."""
    facts, law = document["facts"], document["law"]
    introduction = INTRODUCTION.format(
        users=facts["users"],
        label=document["label"],
        recording=facts["recording"],
        lengths=", ".join(map(str, facts["lengths that plain SLED may have"])),
        repeats=facts["repeats"],
        hub=facts["window, s"]["hub"],
        dense=facts["window, s"]["dense-8k"],
        written=law["written"],
        commit=law["commit"] or "unknown",
        expected=law["expected from"],
    )
    return [
        f"## {document['title']}",
        "",
        introduction,
        "",
        "![Tokens/s of a user over centralized decoding](look_ahead.svg)",
        "",
        *_table(document),
        "",
        *[f"- {line}" for line in verdict_lines(document)],
        "",
    ]


def verdicts(document: Document) -> list[CellVerdict]:
    """Everything that had to be shown: the gain where it was expected, and no loss anywhere."""
    expected = {word["id"] for word in document["law"]["cells"] if word["expected"]}
    found = []
    for cell in document["cells"]:
        over_plain, over_centralized = ratio(cell, EVERYTHING, PLAIN), ratio(cell, EVERYTHING, CENTRALIZED)
        if over_plain and cell["id"] in expected:
            found.append(CellVerdict(cell["id"], "plain SLED", over_plain, EXPECTED))
        if over_centralized:
            found.append(CellVerdict(cell["id"], "centralized decoding", over_centralized, ENOUGH))
    for entry in document["search"]:
        share = entry["share"]
        best = f"the best fixed length ({entry['best_length']}, {entry['best_policy']})"
        found.append(CellVerdict(entry["id"], best, Interval(share, share, share), ENOUGH))
    return found


def verdict_lines(document: Document) -> list[str]:
    """A summary, then every cell that the law named, and whatever was missed."""
    found = verdicts(document)
    bars = dict.fromkeys((_bar(each), each.wanted) for each in found)
    lines = []
    for bar, wanted in bars:
        these = [each for each in found if _bar(each) == bar]
        reached = sum(each.found.mean >= wanted for each in these)
        within = sum(each.kept for each in these) - reached
        least = min(these, key=lambda each: each.found.mean)
        lines.append(
            f"**{wanted:g} of {bar}**: reached in {reached} of {len(these)} cells, within the interval in {within}; "
            f"the lowest is {least.found.mean:.2f} ({least.cell})."
        )
    void = sum(len(cell["void"]) for cell in document["cells"])
    lines.append(f"Void runs: {void}.")
    missed = [each for each in found if each.found.mean < each.wanted]
    return lines + [str(each) for each in found if each in missed or _bar(each) == "plain SLED"]


def _bar(verdict: CellVerdict) -> str:
    return "the best fixed length" if verdict.what.startswith("the best") else verdict.what


def ratio(cell: Entry, ours: str, against: str, key: str = "rates") -> Interval | None:
    """One contender over another, user by user and repeat by repeat; None where no repeat has both."""
    found = {(run["contender"], run["repeat"]): run[key] for run in cell["runs"]}
    pairs = [
        our / their
        for (name, repeat), rates in found.items()
        if name == ours
        for our, their in zip(rates, found.get((against, repeat), ()))
        if their
    ]
    return interval(pairs) if pairs else None


def _mean(cell: Entry, contender: str) -> str:
    every = [rate for run in cell["runs"] if run["contender"] == contender for rate in run["rates"]]
    return f"{fmean(every):.1f}" if every else "void"


def _table(document: Document) -> list[str]:
    words = {word["id"]: word for word in document["law"]["cells"]}
    searched = {entry["id"]: entry for entry in document["search"]}
    rows = [_cells(cell, words[cell["id"]], searched.get(cell["id"])) for cell in document["cells"]]
    return table(HEAD, rows)


def _cells(cell: Entry, word: Entry, searched: Entry | None) -> list[str]:
    simulated = ratio(cell, EVERYTHING, CENTRALIZED, "simulated")
    return [
        cell["id"],
        *[_mean(cell, name) for name in NAMES],
        _spread(ratio(cell, EVERYTHING, PLAIN)),
        f"{word['over_plain']:.2f}{' *' if word['expected'] else ''}",
        _spread(ratio(cell, EVERYTHING, CENTRALIZED)),
        f"{simulated.mean:.2f}" if simulated else "",
        f"{searched['share']:.3f} (k = {searched['best_length']})" if searched else "",
    ]


def _spread(found: Interval | None) -> str:
    return f"**{found.mean:.2f}** ({found.low:.2f} to {found.high:.2f})" if found else "void"
