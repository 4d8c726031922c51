"""remote_drafts.json for docs/benchmarks/README.md and the terminal: tables by link, draft and number of users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.benchmarks.program import table
from lab.benchmarks.real_view import cell
from lab.benchmarks.remote_drafts_document import Run

Found = Mapping[str, Any]
HEAD = (
    *("contender", "tokens/s", "over plain", "steps a token", "CPU, ms a token", "a round"),
    *("drafts that stood", "other texts"),
)


def section(document: Found) -> list[str]:
    """For README.md."""
    return [f"## {document['title']} ({document['label']})", "", *tables(document)]


def tables(document: Found) -> list[str]:
    """All runs, in Markdown."""
    return [
        "Tokens/s of a user. *over plain*: to the same side without drafts; geometric means over the kinds of text, in "
        "brackets a bootstrap interval of 95 % over the groups of prompts (none for a single one). ▼: below 1. *steps "
        "a token*: forward passes of the target, the reading of prompts included, by the tokens of all users. *CPU*: "
        "of the target's process, and of device and draft server. *a round*: tokens that a verdict on a draft "
        "committed. *other texts*: answers that differ from the same side's without drafts; at level fast a near tie "
        "may fall either way.",
        "",
        *(line for run in document["facts"]["runs"] for line in _run(run)),
    ]


def _run(run: Found) -> Iterator[str]:
    peers = list(next(iter(run["over peers"].values())))
    yield f"### {Run(run['engine'], run['link'], run['draft'], run['users'])}"
    yield ""
    yield from table(HEAD, [_contender(run, name) for name in run["contenders"]])
    yield ""
    rows = [[name, *(cell(run["over peers"][name][peer]) for peer in peers)] for name in run["over peers"]]
    yield from table(("over", *peers), rows)
    yield ""
    groups = ", ".join(f"{kind} {count}" for kind, count in run["groups"].items())
    low, high = run["load"]
    yield f"Both targets: {run['way']}. Groups of prompts: {groups}. Load of the machine: {low:g} to {high:g}."
    yield ""


def _contender(run: Found, name: str) -> list[str]:
    found = run["contenders"][name]
    over, drafted = run["over plain"].get(name), found["drafted"]
    return [
        name,
        f"{found['tokens/s']:.1f}",
        cell(over) if over else "",
        f"{found['steps a token']:.2f}",
        " + ".join(f"{value:.1f}" for value in found["CPU, ms a token"]),
        f"{found['tokens a round']:.2f}" if found["tokens a round"] else "",
        f"{found['stood']:.0%} of {drafted}" if drafted else "",
        f"{found['other texts']} of {found['texts']}",
    ]
