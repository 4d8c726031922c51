"""Device and server together under policy `goodput`: both, the one for the other, and what either costs the others."""

from dataclasses import replace

import numpy as np
import pytest

from hw_profiles.speculation import tokens_beside
from hw_profiles.step_cost import DraftingCost, Roofline
from opensled.core.messages import DraftBlock, DraftToken
from scheduler.estimates import DeviceBook, DraftEstimate, Forecast
from scheduler.goodput.assignment import DraftPlanner
from scheduler.goodput.policy import Goodput
from scheduler.goodput.probes import PAUSE
from scheduler.goodput.rounds import ARMS
from scheduler.goodput.state import GoodputState, Lengths
from scheduler.plan import SessionView, Snapshot
from tests.test_goodput_rules import GOOD, HOPELESS, NOW, READS, WAIT, drafting, plan
from tests.test_own_drafts import an_own_draft, only, own, server

NEAR = GOOD._replace(first=0.7, later=0.7, delay_s=0.002, draft_s=0.001, jitter_s=0.0005)
HALF = Forecast(0.6, 0.6)
# A sixth of a step for each pass: it pays, and less than a good device.
MIDDLING = DraftingCost(5e-3, 0.0, 1e-5)


# -- both -------------------------------------------------------------------------------------------------------


TABLES = DraftingCost()  # as good as nothing


def orders(*sessions: SessionView, drafting: DraftingCost) -> tuple[Lengths, Lengths]:
    """What devices and the server draft, without probes."""
    found = plan(*sessions, profile=server(drafting)).memory
    assert isinstance(found, GoodputState)
    return found.hints, found.asks


def beside(apart: float) -> SessionView:
    """A good device that has drafted, beside tables of the server that are right half of the time."""
    better = NEAR._replace(first=0.8, later=0.8)
    return drafting(forecast=better, draft=4, own_forecast=Forecast(0.5, 0.5, apart=apart))


def test_both_draft_where_each_knows_what_the_other_does_not():
    piece = only(beside(1.0), profile=server(TABLES))
    assert piece.hint and piece.ask


@pytest.mark.parametrize("apart", [0.0, 0.02])
def test_one_of_two_that_always_agree_drafts(apart):
    assert orders(beside(apart), drafting=DraftingCost(5e-4)) == ({1: 8}, {})


def test_what_a_second_draft_adds():
    """By listing the cases: two tokens of the second one, one of the first."""
    own, other = (0.6, 0.5), (0.7, 0.9)
    neither_first = 0.6 * (1 - 0.7)  # the own first token stands, the other's does not
    both_first = 0.6 * 0.5  # and the own second one, which the other has not
    assert tokens_beside(own, other, 2, 1) == pytest.approx(neither_first + both_first)


def chain(*ids: int) -> DraftBlock:
    return DraftBlock(5, tuple(map(DraftToken, ids)))


@pytest.mark.parametrize(("more", "apart"), [(2, "much"), (0, "nothing"), (-1, "nothing")])
def test_how_much_a_second_draft_adds_is_learned(more, apart):
    draft, device = an_own_draft(), DeviceBook().of("t", "d")
    for _ in range(40):
        draft.compare(chain(1, 2), more, chain(3, 4), device.forecast)
    assert (draft.estimate.forecast.apart > 0.9) == (apart == "much")
    assert (draft.estimate.forecast.apart == 0) == (apart == "nothing")


def test_a_step_with_one_draft_says_nothing_of_that():
    draft = an_own_draft()
    draft.compare(chain(1, 2), 2, chain(), Forecast())
    draft.compare(chain(), 0, chain(1), Forecast())
    draft.compare(chain(1, 2), 2, chain(3, 4), Forecast())
    assert draft.estimate.forecast.apart > 0.5, "the first two did not count as nothing gained"


# -- what it costs ----------------------------------------------------------------------------------------------


def test_one_that_is_sure_has_no_passes_made_for_itself_alone_at_the_cost_of_all():
    lone = own(1, own_forecast=Forecast(0.9, 0.9))
    others = [own(id, own_forecast=Forecast(0.02, 0.02)) for id in range(2, 34)]
    assert orders(lone, drafting=MIDDLING)[1]
    assert not orders(lone, *others, drafting=MIDDLING)[1]


def reviewed(policy: Goodput, memory: object, session: SessionView, now: float) -> GoodputState:
    found = policy.plan(Snapshot((session,), memory), server(), now).memory
    assert isinstance(found, GoodputState)
    return found


def test_own_drafts_change_at_the_first_review():
    policy = Goodput(WAIT)
    memory = reviewed(policy, None, own(), NOW)
    assert memory.asks and not reviewed(policy, memory, own(own_forecast=HOPELESS), NOW + 1).asks
    assert reviewed(policy, memory, own(own_forecast=HALF), NOW + 1).asks != memory.asks


@pytest.mark.parametrize("pass_s", [0.005, 0.02, 0.1])
def test_probes_of_a_dear_drafter_take_a_small_share_of_the_time(pass_s):
    policy, memory, profile = Goodput(WAIT), None, server(DraftingCost(pass_s, 0.0, 1e-5))
    sessions = tuple([own(id, own_forecast=HOPELESS) for id in range(1, 9)])
    now, spent_s = 0.0, 0.0
    while now < 120.0:
        found = policy.plan(Snapshot(sessions, memory), profile, now)
        passes = max([piece.ask for piece in found.slices])
        spent_s += passes * pass_s
        memory, now = found.memory, now + 0.25 + passes * pass_s
    assert 0 < spent_s < now / PAUSE


def test_many_sessions_whose_prompts_are_nearly_read_count_before_they_are():
    """One session decodes and fifteen come in the next step: rows that are free for one are not for all."""
    profile = replace(server(), cost=Roofline(read_s=0.03, token_s=2e-3))
    first, others = own(1), [own(id, uncomputed=9, own_unread=9) for id in range(2, 18)]
    assert only(first, profile=profile).ask > 2
    memory = Goodput(WAIT).plan(Snapshot((first, *others)), profile, NOW).memory
    assert isinstance(memory, GoodputState) and max(memory.asks.values(), default=0) <= 1


def test_a_session_that_has_its_turn_in_every_fourth_step_is_compared_with_decoding_in_turns():
    """Not with one token in every step, beside which every draft would look much slower."""
    sessions = [drafting(id) for id in range(1, 41)]
    planner = DraftPlanner(sessions, replace(READS, max_step_tokens=16))
    four = planner.assignments(np.full((1, 40), ARMS.index((4, 0))))[0]
    assert set(planner.device[four.arms, planner.all]) == {4}
    assert four.rates.mean() * four.step_s < 0.5, "tokens of a session for each step that passes"


# -- a device at rest -------------------------------------------------------------------------------------------


def taught(first: float, later: float, drafts: int = 200) -> DraftEstimate:
    """Of a device of its own tenant, whose drafts stand so often."""
    estimate = DeviceBook().of("t", "d")
    for number in range(drafts):
        stands = number % 10 < 10 * first
        estimate.add_verdict(2, (1 + (number % 100 < 100 * later)) if stands else 0)
    return estimate


def test_an_easy_text_is_easy_for_a_device_at_rest_as_well():
    book = DeviceBook()
    usual, device = book.of("t", ""), taught(0.5, 0.5)
    for number in range(400):
        usual.add_verdict(2, 2 * (number % 2))
    now = book.of("t", "")
    for _ in range(60):
        now.add_verdict(2, 2)
    before = device.forecast
    device.follow(now)
    assert device.forecast.first > 1.3 * before.first and device.forecast.later > 1.1 * before.later
    assert device.forecast.first <= 1 and device.forecast[2:] == before[2:]
