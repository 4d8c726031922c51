"""The figures as tables of 80 columns, for people who read of drafts for the first time; a row of the leaderboard."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lab.testbed.bench_drafts.prediction import USERS
from lab.testbed.bench_drafts.target import Found
from lab.testbed.planner.page import table, wrapped
from lab.testbed.planner.ways import ALONE, DEVICES, SERVER

WAYS = {ALONE: "without drafts", SERVER: "draft beside the model", DEVICES: "drafts by users' devices"}
NONE = "-"
STEADY = 1.2  # changes of a machine's pace that need no words
_said = partial(wrapped, width=80)


def text_of(found: Found) -> str:
    """Tables and sentences."""
    return "\n\n".join("\n".join(part(found)) for part in (_rows, _acceptance, _speeds))


def _rows(found: Found) -> Iterator[str]:
    levels, end = found["rows"]["levels"], found["rows"]["end"]
    yield _said(f"{found['model']} at {found['url']}")
    cells = ((f"{each['texts']}", f"{each['ms']:.4g}", f"{each['tokens_per_s']:.4g}") for each in levels)
    head, *lines = zip(("texts at once", "ms a token of each", "tokens/s of all"), *cells)
    yield table(head, lines)
    if end:
        yield _said(f"It ends there: {end}. Of more than {levels[-1]['texts']} rows nothing is predicted.")


def _acceptance(found: Found) -> Iterator[str]:
    draft = found["acceptance"]
    if not draft:
        yield _said("No draft was named: --draft-url URL or --draft-model MODEL tells whether one would pay.")
        return
    pace = f"{draft['ms']:.3g} ms" if draft["ms"] else "an unknown time"
    yield _said(f"The draft {draft['draft']} takes {pace} a token. The model writes the same, by place:")
    kinds = {kind: [_share(*counts) for counts in places] for kind, places in draft["kinds"].items()}
    head = ["place", *(f"{place}" for place in range(1, 1 + len(kinds["all"])))]
    yield table(head, [[kind, *shares] for kind, shares in kinds.items()])


def _share(right: int, drafted: int) -> str:
    return f"{right / drafted:.0%}" if drafted else NONE


def _speeds(found: Found) -> Iterator[str]:
    predicted, levels, checked = found["prediction"]["users"], found["users"]["levels"], found["checked"]
    titles = {**{way: WAYS[way] for way in WAYS if way in predicted["1"]}, "pays": "drafts that should pay"}
    rows = {title: {n: each.get(key, NONE) for n, each in predicted.items()} for key, title in titles.items()}
    paces = {f"{each['texts']}": each["tokens_per_s"] / each["texts"] for each in levels}
    rows["then measured"] = {users: f"{pace:.4g}" for users, pace in paces.items()}
    if "way" in checked:
        errors = {users: f"{error:+.0%}" for users, error in checked["errors"].items()}
        rows[f"error of '{WAYS[checked['way']]}'"] = errors
    users = [f"{number}" for number in USERS]
    cells = [[title, *(f"{row.get(number, NONE)}" for number in users)] for title, row in rows.items()]
    yield table(["tokens/s of each of several users", *users], cells)
    if found["users"]["end"]:
        yield _said(f"It ends there: {found['users']['end']}.")
    if "why" in checked:
        yield _said(f"The prediction cannot be checked: {checked['why']}.")
    elif drafted := sum(each["drafted"] for each in levels):
        yield _said(f"Of its own drafts {_share(sum(each['accepted'] for each in levels), drafted)} stood.")
    for each in found["after"]["levels"]:
        times = each["ms"] / found["rows"]["levels"][0]["ms"]
        if not 1 / STEADY < times < STEADY:
            yield _said(f"A text alone then took {times:.2f} times as long as at first: no steady machine.")
    alone, among = ("equal" if same else "not equal" for same in found["same"].values())
    yield _said(f"The same text asked twice: {alone}; asked again among other texts: {among}.")


def row_of(found: Found) -> str:
    """Its row of docs/leaderboard.md."""
    one, *_ = levels = found["rows"]["levels"]
    speeds = {each["texts"]: f"{each['tokens_per_s']:.4g} ({each['ms'] / one['ms']:.2f}x)" for each in levels}
    drafts, draft = [NONE] * 3, found["acceptance"]
    if draft:
        pays = ", ".join(each["pays"] for each in found["prediction"]["users"].values())
        drafts = [draft["draft"].partition(" at ")[0], _share(*draft["kinds"]["all"][0]), pays]
    told = [found["machine"], found["model"], f"{one['tokens_per_s']:.4g}", speeds.get(8, NONE)]
    return f"| {' | '.join([*told, *drafts, found['provenance']['date'][:10]])} |"
