"""The figures as a table of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

WIDTH, LABEL, CELL = 80, 27, 8
WAYS = {
    ALONE: "without drafts",
    SERVER: "draft beside the model",
    DEVICES: "drafts by users' devices",
}
BEST = {ALONE: "none", SERVER: "beside", DEVICES: "devices"}


def table_of(document: dict[str, Any]) -> list[str]:
    """For people who read of drafts for the first time."""
    place = document["settings"]["url"]
    parts = (_rows, _acceptance, _speeds, _same)
    return [
        *_said(f"{document['model']} at {place}"),
        *(line for part in parts for line in ("", *part(document))),
    ]


def _rows(document: dict[str, Any]) -> Iterator[str]:
    rows, costs = document["rows"], document["prediction"]["check_cost"]
    yield _row("texts at once", (level["texts"] for level in rows["levels"]))
    yield _row("  ms a token of each", (f"{level['ms']:.4g}" for level in rows["levels"]))
    yield _row("  tokens/s of all", (f"{level['tokens_per_s']:.4g}" for level in rows["levels"]))
    if rows["end"]:
        yield from _said(f"It ends here: {rows['end']}.")
    told = ", ".join(
        f"{cost:.2f} times with {users} user{'s' * (users != '1')}" for users, cost in costs.items()
    )
    yield from _said(f"To check 4 draft tokens of each user, a step takes as long as without: {told}.")


def _acceptance(document: dict[str, Any]) -> Iterator[str]:
    found = document["acceptance"]
    if not found:
        yield from _said(
            "No draft was named; --draft-url URL or --draft-model MODEL tells whether one would pay."
        )
        return
    pace = f"{found['ms']:.3g} ms" if found["ms"] else "an unknown time"
    yield from _said(
        f"The draft {found['draft']} takes {pace} a token. Share of its tokens that the model writes too:"
    )
    yield _row("place in the draft", range(1, 1 + len(found["by_place"])), 6)
    for kind, counts in found["kinds"].items():
        pairs = zip(counts["stood"], counts["reached"])
        yield _row(f"  {kind}", (f"{stood / reached:.0%}" if reached else "-" for stood, reached in pairs), 6)
    yield _row("  all", (f"{share:.0%}" for share in found["by_place"]), 6)


def _speeds(document: dict[str, Any]) -> Iterator[str]:
    predicted, checked = document["prediction"]["users"], document["checked"]
    measured = {str(level["texts"]): level for level in document["users"]["levels"]}
    yield _row("users at once", predicted)
    yield "tokens/s of each, predicted"
    for way in WAYS:
        if way in predicted["1"]:
            yield _row(f"  {WAYS[way]}", (f"{each[way]:.4g}" for each in predicted.values()))
    if SERVER in predicted["1"]:
        yield _row("  drafts that should pay", (BEST[each["best"]] for each in predicted.values()))
    yield _row("measured afterwards", (_pace(measured.get(users)) for users in predicted))
    if document["users"]["end"]:
        yield from _said(f"It ends here: {document['users']['end']}.")
    if "errors" in checked:
        errors = (
            f"{checked['errors'][users]:+.0%}" if users in checked["errors"] else "-" for users in predicted
        )
        yield _row("  error of the prediction", errors)
        drafted, right = (sum(level[key] for level in measured.values()) for key in ("drafted", "accepted"))
        words = (
            f"{right / drafted:.0%} of its draft tokens stood" if drafted else "the server drafted nothing"
        )
        yield from _said(f"Compared with the line '{WAYS[checked['way']]}': {words}.")
    else:
        yield from _said(f"The prediction cannot be checked: {checked['why']}.")


def _pace(level: dict[str, Any] | None) -> str:
    return f"{level['tokens_per_s'] / level['texts']:.4g}" if level else "-"


def _same(document: dict[str, Any]) -> Iterator[str]:
    alone, among = ("equal" if document["same"][key] else "not equal" for key in ("alone", "among_others"))
    yield from _said(f"The same text asked twice: {alone}; asked again among other texts: {among}.")


def _row(label: str, cells: Iterable[object], width: int = CELL) -> str:
    return f"{label:<{LABEL}}" + "".join(f"{cell!s:>{width}}" for cell in cells)


def _said(text: str) -> list[str]:
    return wrap(text, WIDTH)
