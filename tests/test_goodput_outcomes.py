"""What came of plans of policy `goodput`, beside what they promised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from scheduler.goodput.outcomes import NOTHING_SEEN, Expected
from scheduler.plan import SessionView
from tests.test_goodput_rules import NOW, view


def grown(sessions: Sequence[SessionView], tokens: Mapping[int, int]) -> list[SessionView]:
    return [replace(each, context=each.context + tokens[each.id]) for each in sessions]


def worth_after(rates: Callable[[Expected], float]) -> float:
    """Of a planned token with drafts, where two sessions, of which one has drafts, commit so many tokens/s."""
    sessions, outcomes = [view(1), view(2)], NOTHING_SEEN
    for _ in range(40):
        expected = {one.id: Expected(one.context, 20.0, one.id == 2, NOW - 60) for one in sessions}
        sessions = grown(sessions, {id: round(rates(each)) for id, each in expected.items()})
        outcomes = outcomes.after(expected, sessions, 1.0, NOW)
    return outcomes.worth


def test_drafts_that_bring_less_than_was_planned_count_for_less() -> None:
    assert worth_after(lambda one: 12 if one.drafts else 20) == pytest.approx(0.6, abs=0.1)
    assert worth_after(lambda one: 20) == pytest.approx(1.0)


def test_a_server_that_is_slow_for_all_says_nothing_of_drafts() -> None:
    assert worth_after(lambda one: 10) == pytest.approx(1.0, abs=0.01)
    assert worth_after(lambda one: 0) == pytest.approx(1.0, abs=0.01)


def test_who_has_just_begun_to_draft_tells_nothing_yet() -> None:
    known = {1: Expected(50, 20.0, True, NOW)}
    assert NOTHING_SEEN.after(known, [view(1)], 1.0, NOW - 1) == NOTHING_SEEN
