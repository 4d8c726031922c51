"""The state machine of turns against the table in docs/protocol.md, and both ends' turns against each other."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensled.errors import FutureBase
from opensled.messages import Draft, DraftBlock, DraftToken, Verdict
from opensled.protocol import Truth
from opensled.turns import Turn, hear

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "protocol.md"
TRUTH = (1, 2, 3)


def draft(counter: int, tokens: int = 1) -> Draft:
    return Draft(counter, DraftBlock(3, (DraftToken(7),) * tokens))


def table() -> list[list[str]]:
    """Rows of the table under "Turns": event, condition, who drives, unanswered, hint."""
    section = DOCUMENT.read_text("utf-8").split("## Turns", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def continuation(counter: int, base: int = 4, ids: tuple[int, ...] = (8, 9)) -> Draft:
    return Draft(counter, DraftBlock(base, tuple(map(DraftToken, ids))), continues=counter - 1)


def turn_of(server_drives: bool, unanswered: int, hint: int | None) -> Turn:
    turn = Turn(hint)
    turn.draft(draft(4))
    turn.verdict(4, None, TRUTH)
    for each in [draft(5), continuation(6)][:unanswered]:
        turn.draft(each)
    turn.server_drives = server_drives
    return turn


STATES = list(product((True, False), (0, 1, 2), (None, 0, 4)))
RIGHT, WRONG = (*TRUTH, 7, 8), (*TRUTH, 7, 1)  # the bonus token is the continuation's guess, or another one


def happen(event: str, turn: Turn, hint: int | None, truth: tuple[int, ...]) -> None:
    if event == "draft":
        turn.draft(draft(7))
    elif event == "empty draft":
        turn.draft(draft(7, tokens=0))
    elif event == "continuation":
        turn.draft(continuation(6))
    elif event == "verdict":
        turn.verdict(5, hint, truth)
    elif event == "unasked verdict":
        turn.verdict(0, hint, TRUTH)
    else:
        assert event == "reopened stream"
        turn.reopened(hint)


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


@pytest.mark.parametrize("truth", [RIGHT, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_transition_is_the_one_of_the_table(state: tuple, truth: tuple[int, ...]) -> None:
    checked = 0
    for event, hint in product({row[0].strip("*`") for row in table()}, (None, 0, 4)):
        before, after = turn_of(*state), turn_of(*state)
        if event == "continuation" and len(before.unanswered) != 1:
            continue
        found = [row for row in table() if row[0] == event and holds(row[1], before, hint)]
        assert len(found) == 1, f"{event} with hint {hint} in state {state}: {len(found)} rows"
        happen(event, after, hint, truth)
        _, _, drives, unanswered, new_hint = found[0]
        assert (
            after.server_drives
            == {"server": True, "device": False, "as before": before.server_drives}[drives]
        )
        count = len(before.unanswered)
        left = {
            "this draft": 1,
            "none": 0,
            "as before": count,
            "one more": count + 1,
            "its continuation, if that stands": int(count == 2 and truth == RIGHT),
        }[unanswered]
        assert len(after.unanswered) == left
        assert after.hint == {"new": hint, "as before": before.hint}[new_hint]
        checked += 1
    assert checked == (18 if state[1] == 1 else 15)


def test_a_repeated_or_overtaken_draft_is_not_new() -> None:
    turn = Turn()
    turn.draft(draft(2))
    assert not turn.is_new(draft(2)) and not turn.is_new(draft(1)) and turn.is_new(draft(3))
    assert turn.reopened(None) == (draft(2),) and turn.is_new(draft(2)), "a new stream takes it again"


def test_a_verdict_answers_the_drafts_before_it_and_leaves_a_later_one() -> None:
    turn = Turn()
    turn.draft(draft(1))
    turn.draft(draft(2))
    turn.verdict(1, None, TRUTH)
    assert turn.unanswered == (draft(2),) and not turn.may_draft
    turn.verdict(2, None, TRUTH)
    assert turn.unanswered == () and turn.may_draft and turn.awaits_draft


@pytest.mark.parametrize(
    ("truth", "rest"),
    [
        ((*TRUTH, 7, 8), (9,)),  # all stands, and the guess is the bonus token
        ((*TRUTH, 7, 5), None),
        ((*TRUTH, 6), None),  # the first draft fails, and its place is taken at just the continuation's base
        ((*TRUTH, 7), (8, 9)),  # a part of the first draft was verified
        ((*TRUTH, 7, 8, 9), ()),
        ((*TRUTH, 7, 8, 9, 4), None),  # the server has got further than what was drafted
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_what_is_left_of_a_continuation_when_its_draft_has_a_verdict(truth, rest, late) -> None:
    turn = Turn()
    turn.draft(draft(1))
    if not late:
        assert turn.draft(continuation(2)) and [each.counter for each in turn.unanswered] == [1, 2]
    turn.verdict(1, None, truth)
    if late:
        assert turn.draft(continuation(2)) == (rest is not None)
    left = () if rest is None else (Draft(2, DraftBlock(len(truth), tuple(map(DraftToken, rest)))),)
    assert turn.unanswered == left and turn.may_draft == (rest is None) and turn.latest == 2
    if rest:
        turn.draft(continuation(3, base=6, ids=(1, 2)))
        assert turn.unanswered[-1].block == DraftBlock(len(truth), tuple(map(DraftToken, (*rest, 1, 2))))


def test_only_the_newest_draft_is_continued_and_only_once() -> None:
    turn = Turn()
    assert not turn.is_new(continuation(2)), "nothing was drafted"
    turn.draft(draft(1))
    assert turn.is_new(continuation(2)) and not turn.is_new(continuation(3))
    turn.draft(continuation(2))
    assert not turn.is_new(continuation(3, base=6)), "one at a time"
    turn.verdict(1, None, (*TRUTH, 5))
    assert not turn.is_new(continuation(3, base=6)), "a void one has no continuation"
    turn.draft(draft(3, tokens=0))
    assert not turn.is_new(continuation(4))


@pytest.mark.parametrize("base", [3, 5])
def test_a_continuation_begins_where_its_draft_ends(base: int) -> None:
    turn = Turn()
    turn.draft(draft(1))
    with pytest.raises(FutureBase, match="does not continue draft 1, a chain that ends at 4"):
        turn.draft(continuation(2, base=base))
    tree = Draft(2, DraftBlock(3, (DraftToken(7),), (-1,)))
    turn.draft(tree)
    with pytest.raises(FutureBase, match="does not continue draft 2"):
        turn.draft(continuation(3))
    assert turn.continuable is None


def test_a_reopened_stream_gets_the_draft_and_its_continuation_as_one() -> None:
    turn = Turn()
    turn.draft(draft(1))
    turn.draft(continuation(2))
    assert turn.reopened(None) == (Draft(2, DraftBlock(3, tuple(map(DraftToken, (7, 8, 9))))),)
    assert not turn.is_new(continuation(3, base=6)), "nothing of the older stream is continued"


@pytest.mark.parametrize(("hint", "allowed"), [(None, 6), (0, 0), (4, 4), (9, 6)])
def test_what_a_hint_allows(hint: int | None, allowed: int) -> None:
    turn = Turn(hint)
    assert turn.allowed(6) == allowed and turn.may_draft == (hint != 0)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["draft", "on", "empty", "verdict", "right", "unasked", "reopened"]),
        st.sampled_from([None, 0, 3]),
    ),
    max_size=40,
)


@given(events=EVENTS)
def test_both_ends_agree_where_every_message_arrives_at_once(events: list[tuple[str, int | None]]) -> None:
    device, server, truth, counter = Turn(), Turn(), Truth((1, 2, 3)), 0
    for event, hint in events:
        if event in ("draft", "empty"):
            counter += 1
            for turn in (device, server):
                turn.draft(Draft(counter, DraftBlock(len(truth), (DraftToken(7),) * (event == "draft"))))
        elif event == "on":
            chain = device.continuable
            if chain is not None:
                counter += 1
                for turn in (device, server):
                    turn.draft(continuation(counter, chain.base + len(chain.tokens), (7, 7)))
        elif event == "reopened":
            server.reopened(server.hint)
            for lost in device.reopened(server.hint):
                device.draft(lost)
                server.draft(lost)
        else:
            oldest = server.unanswered[0].counter if server.unanswered else counter
            answers = 0 if event == "unasked" else oldest
            news = (7, 7) if event == "right" else (7,) if event == "unasked" else (8,)
            server.verdict(answers, hint, (*truth.tokens, *news))
            hear(Verdict(len(truth), news, answers=answers, hint=server.hint), truth, device)
        assert (device.server_drives, device.unanswered, device.hint) == (
            server.server_drives, server.unanswered, server.hint,
        )  # fmt: skip
        assert not (device.hint == 0 and not device.server_drives), "a device that rests is not waited for"
