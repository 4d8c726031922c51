"""The state machine of turns against the table in docs/protocol.md, and both ends' turns against each other."""

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensled.core.messages import Draft, DraftBlock, DraftToken, Verdict
from opensled.core.protocol import Truth
from opensled.core.turns import Turn, hear

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"
TRUTH = (1, 2, 3)


def draft(counter: int, tokens: int = 1) -> Draft:
    return Draft(counter, DraftBlock(3, (DraftToken(7),) * tokens))


def table() -> list[list[str]]:
    """Rows of the table under "Turns": event, condition, who drives, unanswered, hint."""
    section = DOCUMENT.read_text("utf-8").split("## Turns", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def turn_of(server_drives: bool, has_unanswered: bool, hint: int | None) -> Turn:
    turn = Turn(hint)
    turn.draft(draft(4))
    turn.verdict(4, None)
    if has_unanswered:
        turn.draft(draft(5))
    turn.server_drives = server_drives
    return turn


STATES = list(product((True, False), (False, True), (None, 0, 4)))


def happen(event: str, turn: Turn, hint: int | None) -> None:
    if event == "draft":
        turn.draft(draft(7))
    elif event == "empty draft":
        turn.draft(draft(7, tokens=0))
    elif event == "verdict":
        turn.verdict(5, hint)
    elif event == "unasked verdict":
        turn.verdict(0, hint)
    else:
        assert event == "reopened stream"
        turn.reopen(hint)


def holds(condition: str, turn: Turn, hint: int | None) -> bool:
    """A condition speaks of the hint that comes (`new`) and of the one before (`old`)."""
    names = {"new": hint, "old": turn.hint, "none": None}
    return condition == "" or all(_holds(part, names) for part in condition.split(" and "))


def _holds(part: str, names: dict[str, int | None]) -> bool:
    match = re.fullmatch(r"(new|old) (is|is not|>) (none|0)", part)
    assert match, f"the table says {part!r}"
    value, wanted = names[match[1]], {"none": None, "0": 0}[match[3]]
    if match[2] == ">":
        return value is not None and value > 0
    return (value == wanted and type(value) is type(wanted)) == (match[2] == "is")


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_transition_is_the_one_of_the_table(state):
    checked = 0
    for event, hint in product({row[0].strip("*`") for row in table()}, (None, 0, 4)):
        before, after = turn_of(*state), turn_of(*state)
        found = [row for row in table() if row[0] == event and holds(row[1], before, hint)]
        assert len(found) == 1, f"{event} with hint {hint} in state {state}: {len(found)} rows"
        happen(event, after, hint)
        _, _, drives, unanswered, new_hint = found[0]
        assert (
            after.server_drives
            == {"server": True, "device": False, "as before": before.server_drives}[drives]
        )
        left = {"this draft": draft(7), "none": None, "as before": before.unanswered}[unanswered]
        assert after.unanswered == left
        assert after.hint == {"new": hint, "as before": before.hint}[new_hint]
        checked += 1
    assert checked == 15


def test_a_repeated_or_overtaken_draft_is_not_new():
    turn = Turn()
    turn.draft(draft(2))
    assert not turn.is_new(draft(2)) and not turn.is_new(draft(1)) and turn.is_new(draft(3))
    assert turn.reopen(None) == draft(2) and turn.is_new(draft(2)), "a new stream takes it again"


def test_a_verdict_answers_the_drafts_before_it_and_leaves_a_later_one():
    turn = Turn()
    turn.draft(draft(1))
    turn.draft(draft(2))
    turn.verdict(1, None)
    assert turn.unanswered == draft(2) and not turn.may_draft
    turn.verdict(2, None)
    assert turn.unanswered is None and turn.may_draft and turn.awaits_draft


@pytest.mark.parametrize(("hint", "allowed"), [(None, 6), (0, 0), (4, 4), (9, 6)])
def test_what_a_hint_allows(hint, allowed):
    turn = Turn(hint)
    assert turn.limit(6) == allowed and turn.may_draft == (hint != 0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["draft", "empty", "verdict", "unasked", "reopened"]), st.sampled_from([None, 0, 3])
    ),
    max_size=40,
)


@given(events=EVENTS)
def test_both_ends_agree_where_every_message_arrives_at_once(events):
    device, server, truth, counter = Turn(), Turn(), Truth((1, 2, 3)), 0
    for event, hint in events:
        if event in ("draft", "empty"):
            counter += 1
            for turn in (device, server):
                turn.draft(Draft(counter, DraftBlock(len(truth), (DraftToken(7),) * (event == "draft"))))
        elif event == "reopened":
            server.reopen(server.hint)
            lost = device.reopen(server.hint)
            if lost is not None:
                device.draft(lost)
                server.draft(lost)
        else:
            answers = 0 if event == "unasked" else counter
            server.verdict(answers, hint)
            hear(Verdict(len(truth), (7,), answers=answers, hint=server.hint), truth, device)
        assert (device.server_drives, device.unanswered, device.hint) == (
            server.server_drives, server.unanswered, server.hint,
        )  # fmt: skip
        assert not (device.hint == 0 and not device.server_drives), "a device that rests is not waited for"
