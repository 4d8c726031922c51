"""The figures as a table of 80 columns, for people who read of drafts for the first time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any

from lab.testbed.bench_drafts.prediction import CHECKED, USERS
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

WIDTH, LABEL, CELL = 80, 27, 8
WAYS = {ALONE: "without drafts", SERVER: "draft beside the model", DEVICES: "drafts by users' devices"}
PAYS = {(): "none", (SERVER,): "beside", (DEVICES,): "devices", (SERVER, DEVICES): "both"}


def table_of(document: dict[str, Any]) -> list[str]:
    """Its lines."""
    parts = (_rows, _acceptance, _speeds, _same)
    lines = (line for part in parts for line in ("", *part(document)))
    return [*_said(f"{document['model']} at {document['url']}"), *lines]


def _rows(document: dict[str, Any]) -> Iterator[str]:
    rows, costs = document["rows"], document["prediction"]["check_cost"]
    yield _row("texts at once", (level["texts"] for level in rows["levels"]))
    yield _row("  ms a token of each", (f"{level['ms']:.4g}" for level in rows["levels"]))
    yield _row("  tokens/s of all", (f"{level['tokens_per_s']:.4g}" for level in rows["levels"]))
    yield from _ended(rows)
    told = ", ".join(f"{cost:.2f} for {users}" for users, cost in costs.items())
    if told:
        yield from _said(
            f"A step that also checks {CHECKED} draft tokens of each user takes so many times as long:"
        )
        yield from _said(f"{told} {'user' if len(costs) == 1 else 'users'}.")


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
        pairs = zip(counts["stood"], counts["reached"], found["by_place"])
        yield _row(
            f"  {kind}", (f"{stood / reached:.0%}" if reached else "-" for stood, reached, _ in pairs), 6
        )
    yield _row("  all", (f"{share:.0%}" for share in found["by_place"]), 6)


def _speeds(document: dict[str, Any]) -> Iterator[str]:
    predicted, checked = document["prediction"]["users"], document["checked"]
    measured = {str(level["texts"]): level for level in document["users"]["levels"]}
    yield _row("users at once", USERS)
    yield "tokens/s of each, predicted"
    for way in (way for way in WAYS if way in predicted["1"]):
        yield _row(f"  {WAYS[way]}", (f"{each[way]:.4g}" for each in predicted.values()))
    if SERVER in predicted["1"]:
        yield _row("  drafts that should pay", (PAYS[tuple(each["pays"])] for each in predicted.values()))
    paces = {users: f"{level['tokens_per_s'] / level['texts']:.4g}" for users, level in measured.items()}
    yield _row("tokens/s, then measured", (paces.get(str(users), "-") for users in USERS))
    yield from _ended(document["users"])
    if "why" in checked:
        yield from _said(f"The prediction cannot be checked: {checked['why']}.")
        return
    yield _row("  error of the prediction", (f"{error:+.0%}" for error in checked["errors"].values()))
    drafted, right = (sum(level[key] for level in measured.values()) for key in ("drafted", "accepted"))
    words = f"{right / drafted:.0%} of its draft tokens stood" if drafted else "the server drafted nothing"
    yield from _said(f"Compared with '{WAYS[checked['way']]}': {words}.")


def _same(document: dict[str, Any]) -> list[str]:
    alone, among = ("equal" if document["same"][key] else "not equal" for key in ("alone", "among_others"))
    return _said(f"The same text asked twice: {alone}; asked again among other texts: {among}.")


def _ended(curve: dict[str, Any]) -> list[str]:
    return _said(f"It ends here: {curve['end']}.") if curve["end"] else []


def _row(label: str, cells: Iterable[object], width: int = CELL) -> str:
    return f"{label:<{LABEL}}" + "".join(f"{cell!s:>{width}}" for cell in cells)


def _said(text: str) -> list[str]:
    return wrap(text, WIDTH)
