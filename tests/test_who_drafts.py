"""Device and server together under policy `goodput`: both, the one for the other, and what either costs the others.

Run: .venv/bin/python -m pytest tests/test_who_drafts.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from hw_profiles.speculation import tokens_beside
from hw_profiles.step_cost import DraftingCost, Roofline
from opensled.messages import DraftBlock, DraftToken
from scheduler.estimates import DeviceBook, DraftEstimate, Forecast
from scheduler.goodput.arms import LENGTHS, PromptLoad
from scheduler.goodput.assignment import DraftPlanner
from scheduler.goodput.policy import Goodput
from scheduler.goodput.state import OWN_PROBES_FROM, PROBE_READS, GoodputState
from scheduler.plan import SessionView, Snapshot
from tests.test_goodput_rules import GOOD, HOPELESS, NOW, READS, WAIT, drafting, plan
from tests.test_own_drafts import DEAR, an_own_draft, only, own, server

NEAR = GOOD._replace(first=0.7, later=0.7, delay_s=0.002, draft_s=0.001, jitter_s=0.0005)
HALF = Forecast(0.6, 0.6)
# A sixth of a step for each pass: it pays, and less than a good device.
MIDDLING = DraftingCost(5e-3, 0.0, 1e-5)


# -- both -------------------------------------------------------------------------------------------------------


TABLES = DraftingCost()  # as good as nothing


def beside(apart: float) -> SessionView:
    """A good device that has drafted, beside tables of the server that are right half of the time."""
    better = NEAR._replace(first=0.8, later=0.8)
    return drafting(forecast=better, draft=4, own_forecast=Forecast(0.5, 0.5, apart=apart))


def test_both_draft_where_each_knows_what_the_other_does_not() -> None:
    piece = only(beside(1.0), profile=server(TABLES))
    assert piece.hint and piece.ask


@pytest.mark.parametrize("apart", [0.0, 0.02])
def test_one_of_two_that_always_agree_drafts(apart: float) -> None:
    piece = only(beside(apart), profile=server(TABLES))
    assert piece.hint and not piece.ask


def test_what_a_second_draft_adds() -> None:
    """By listing the cases: two tokens of the second one, one of the first."""
    own, other = (0.6, 0.5), (0.7, 0.9)
    neither_first = 0.6 * (1 - 0.7)  # the own first token stands, the other's does not
    both_first = 0.6 * 0.5  # and the own second one, which the other has not
    assert tokens_beside(own, other, 2, 1) == pytest.approx(neither_first + both_first)


def chain(*ids: int) -> DraftBlock:
    return DraftBlock(5, tuple(map(DraftToken, ids)))


@pytest.mark.parametrize(("more", "apart"), [(2, "much"), (0, "nothing"), (-1, "nothing")])
def test_how_much_a_second_draft_adds_is_learned(more: int, apart: str) -> None:
    draft, device = an_own_draft(), DeviceBook().of("t", "d")
    for _ in range(40):
        draft.compare(chain(1, 2), more, chain(3, 4), device.forecast)
    assert (draft.estimate.forecast.apart > 0.9) == (apart == "much")
    assert (draft.estimate.forecast.apart == 0) == (apart == "nothing")


def test_a_step_with_one_draft_says_nothing_of_that() -> None:
    draft = an_own_draft()
    draft.compare(chain(1, 2), 2, chain(), Forecast())
    draft.compare(chain(), 0, chain(1), Forecast())
    draft.compare(chain(1, 2), 2, chain(3, 4), Forecast())
    assert draft.estimate.forecast.apart > 0.5, "the first two did not count as nothing gained"


# -- a device that is late --------------------------------------------------------------------------------------


def late(**fields: object) -> SessionView:
    """A device whose drafts pay, and of which one is long overdue."""
    return drafting(forecast=NEAR, asked_since=NOW - 5, **{"own_forecast": HALF, **fields})


def test_the_server_drafts_for_a_device_that_is_late() -> None:
    assert only(late(), profile=server(MIDDLING)).ask > 0
    assert only(late(own_forecast=None), profile=server(MIDDLING)).ask == 0


@pytest.mark.parametrize(
    ("fields", "cost"), [({}, DEAR), ({"own_unread": 500}, MIDDLING), ({"own_forecast": HOPELESS}, MIDDLING)]
)
def test_not_where_that_costs_more_than_it_brings(fields: dict[str, object], cost: DraftingCost) -> None:
    assert only(late(**fields), profile=server(cost)).ask == 0


def test_a_device_in_time_is_not_replaced() -> None:
    """Its session waits, and nothing is asked of the server's drafter in the step with its draft."""
    assert plan(drafting(forecast=NEAR, own_forecast=HALF), profile=server(MIDDLING)).slices == ()
    assert only(drafting(forecast=NEAR, draft=4, own_forecast=HALF), profile=server(MIDDLING)).ask == 0


# -- what it costs ----------------------------------------------------------------------------------------------


def asks(*sessions: SessionView, drafting: DraftingCost) -> list[int]:
    return [piece.ask for piece in plan(*sessions, profile=server(drafting)).slices]


def test_one_that_is_sure_has_no_passes_made_for_itself_alone_at_the_cost_of_all() -> None:
    lone = own(1, own_forecast=Forecast(0.9, 0.9))
    others = [own(id, own_forecast=Forecast(0.02, 0.02)) for id in range(2, 34)]
    assert asks(lone, drafting=MIDDLING)[0] > 0
    assert not any(asks(lone, *others, drafting=MIDDLING))


def reviewed(policy: Goodput, memory: object, session: SessionView, now: float) -> GoodputState:
    found = policy.plan(Snapshot((session,), memory), server(), now).memory
    assert isinstance(found, GoodputState)
    return found


def test_own_drafts_change_at_the_first_review() -> None:
    policy = Goodput(WAIT)
    memory = reviewed(policy, None, own(), NOW)
    assert memory.asks and not reviewed(policy, memory, own(own_forecast=HOPELESS), NOW + 1).asks
    assert reviewed(policy, memory, own(own_forecast=HALF), NOW + 1).asks != memory.asks


def test_own_drafts_follow_small_gains_and_devices_large_ones_only() -> None:
    """A second assignment that is 1.5 % better, for the server's drafts and for a device's."""
    planner = DraftPlanner([own(1, own_forecast=Forecast(0.5, 0.5))], server(), PromptLoad())
    plain = planner.assignment(0)
    short = plain._replace(rule=7, arms=plain.arms + len(LENGTHS))
    longer = short._replace(rule=8, worth=short.worth + 0.015 * short.rate, arms=short.arms + 1)
    device = plain._replace(worth=plain.worth + 0.015 * plain.rate, arms=plain.arms + 1)
    assert planner.chosen(short, [longer]) is longer
    assert planner.chosen(plain, [device]) is plain


def test_own_drafts_must_be_clearly_better_than_plain_decoding() -> None:
    """What they gain is an estimate, and who gets none waits for longer steps all the same."""
    planner = DraftPlanner([own(1, own_forecast=Forecast(0.5, 0.5))], server(), PromptLoad())
    plain = planner.assignment(0)
    for gain, taken in ((0.015, False), (0.045, True)):
        drafts = plain._replace(rule=7, worth=plain.worth + gain * plain.rate, arms=plain.arms + len(LENGTHS))
        assert (planner.chosen(plain, [drafts]) is drafts) == taken
        assert (planner.chosen(drafts, [plain]) is drafts) == taken


@pytest.mark.parametrize("steps", [3000, pytest.param(6000, marks=pytest.mark.long)])
def test_probes_of_a_dear_drafter_take_a_small_share_of_the_steps(steps: int) -> None:
    policy, memory, profile = Goodput(WAIT), None, server(DEAR)
    sessions = tuple([own(id) for id in range(1, 33)])
    probed = []
    for step in range(steps):
        found = policy.plan(Snapshot(sessions, memory), profile, NOW + 0.03 * step)
        memory = found.memory
        probed += [step] if any(piece.ask for piece in found.slices) else []
    drafting_s = len(probed) * DEAR.seconds(4, 4, 0)
    assert probed and probed[0] >= OWN_PROBES_FROM
    assert drafting_s < 0.05 * steps * 0.03


def test_many_sessions_whose_prompts_are_nearly_read_count_before_they_are() -> None:
    """One session decodes and fifteen come in the next step: rows that are free for one are not for all."""
    profile = replace(server(), cost=Roofline(read_s=0.03, token_s=2e-3))
    first, others = own(1), [own(id, uncomputed=9, own_unread=9) for id in range(2, 18)]
    assert only(first, profile=profile).ask > 2
    memory = Goodput(WAIT).plan(Snapshot((first, *others)), profile, NOW).memory
    assert isinstance(memory, GoodputState) and max(memory.asks.values(), default=0) <= 1


def test_a_session_that_has_its_turn_in_every_fourth_step_is_compared_with_decoding_in_turns() -> None:
    """Not with one token in every step, beside which every draft would look much slower."""
    sessions = [drafting(id) for id in range(1, 41)]
    planner = DraftPlanner(sessions, replace(READS, max_step_tokens=16), PromptLoad())
    four = planner.assignment(LENGTHS.index(4))
    assert set(planner.arms.device[four.arms]) == {4}
    assert four.rate / 40 * four.step_s < 0.5, "tokens of a session for each step that passes"


def test_a_long_text_is_read_for_a_session_that_was_there_before() -> None:
    policy, long = Goodput(WAIT), own(own_unread=PROBE_READS + 1)
    memory = reviewed(policy, None, long, NOW)
    assert not memory.asks and reviewed(policy, memory, long, NOW + 1e-3).asks, "a step later"
    assert reviewed(policy, None, own(own_unread=PROBE_READS), NOW).asks


def test_a_long_text_is_read_at_once_where_the_server_drafts_for_others_already() -> None:
    """A step without a draft is a few tokens of each answer; after a pause nobody knows who else comes."""
    policy, other, long = Goodput(WAIT), own(1), own(2, own_unread=PROBE_READS + 1)
    memory = reviewed(policy, None, other, NOW)
    assert memory.asks
    for sessions, moment, asked in [((other, long), 0.03, True), ((long,), 0.03, True), ((long,), 60, False)]:
        found = policy.plan(Snapshot(sessions, memory), server(), NOW + moment)
        assert ({piece.session: piece.ask for piece in found.slices}[2] > 0) is asked


# -- a device at rest -------------------------------------------------------------------------------------------


def taught(first: float, later: float, drafts: int = 200) -> DraftEstimate:
    """Of a device of its own tenant, whose drafts stand so often."""
    estimate = DeviceBook().of("t", "d")
    for number in range(drafts):
        stands = number % 10 < 10 * first
        estimate.judged(2, (1 + (number % 100 < 100 * later)) if stands else 0)
    return estimate


def test_an_easy_text_is_easy_for_a_device_at_rest_as_well() -> None:
    book = DeviceBook()
    usual, device = book.of("t", ""), taught(0.5, 0.5)
    for number in range(400):
        usual.judged(2, 2 * (number % 2))
    now = book.of("t", "")
    for _ in range(60):
        now.judged(2, 2)
    before = device.forecast
    device.follow(now)
    assert device.forecast.first > 1.3 * before.first and device.forecast.later > 1.1 * before.later
    assert device.forecast.first <= 1 and device.forecast[2:] == before[2:]
