"""Policy `goodput`, rule by rule: a snapshot in, a plan out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from random import Random

import numpy as np
import pytest

from hw_profiles.step_cost import HardwareProfile, Roofline
from scheduler.estimates import DeviceBook, Forecast
from scheduler.goodput.assignment import OWN_BETTER, DraftPlanner
from scheduler.goodput.outcomes import NOTHING_SEEN, Expected
from scheduler.goodput.policy import Goodput
from scheduler.goodput.probes import RESTED
from scheduler.goodput.state import REVIEW_S, GoodputState, current
from scheduler.goodput.step_budget import BACKGROUND_S, LONG_S
from scheduler.plan import BatchPlan, SessionView, Slice, Snapshot
from tests.goodput_plans import COMPUTES, FAR, GOOD, HOPELESS, NOW, READS, WAIT, drafting, plan, view
from tests.policy_contract import COSTS, crowd


def chosen(found: BatchPlan) -> list[int]:
    return sorted(piece.session for piece in found.slices)


def hints(found: BatchPlan) -> dict[int, int | None]:
    return {piece.session: piece.hint for piece in found.slices}


def ordered(found: BatchPlan) -> set[int]:
    """The hints of all devices, those of probes left out."""
    assert isinstance(found.memory, GoodputState)
    return set(found.memory.hints.values())


def test_plans_are_the_same_whether_waits_are_looked_up_or_worked_out():
    """Hints, times and views change meanwhile."""
    policy, kept, anew, chance, waited = Goodput(WAIT), None, None, Random(3), 0
    views = {id: drafting(id, asked_since=NOW + id / 50) for id in range(1, 9)}
    for turn in range(400):
        now, id = NOW + turn / 100, chance.randint(1, 8)
        if turn % 3 == 0:
            forecast = (GOOD, FAR, HOPELESS)[turn // 100 % 3]
            views[id] = drafting(id, draft=chance.choice((None, 4)), asked_since=now, forecast=forecast)
        given = tuple(views.values())
        one = policy.plan(Snapshot(given, kept), READS, now)
        other = policy.plan(Snapshot(given, anew and replace(anew, waits={})), READS, now)
        assert (one.slices, one.wake_at) == (other.slices, other.wake_at)
        kept, anew, waited = one.memory, other.memory, waited + (one.wake_at < inf)
    assert waited > 100


# -- verify, decode, wait ---------------------------------------------------------------------------------------


def test_nobody_there_sleeps_until_an_arrival():
    found = plan()
    assert (found.slices, found.wake_at) == ((), inf)


def test_a_session_that_nobody_drafts_for_is_decoded_at_once():
    assert chosen(plan(view())) == [1]


def test_a_draft_is_verified_and_answered_with_a_hint():
    (piece,) = plan(drafting(draft=4)).slices
    assert piece.decide and piece.tokens == 1 and piece.draft in (None, 4)
    assert piece.hint and piece.hint > 0


def test_a_draft_that_is_worth_it_is_waited_for_until_it_is_late():
    found = plan(drafting())
    assert found.slices == ()
    assert NOW + GOOD.away_s(4) < found.wake_at < NOW + 0.2
    assert chosen(plan(drafting(), now=found.wake_at + 1e-3)) == [1]


@pytest.mark.parametrize(
    ("cause", "forecast", "profile"),
    [
        ("acceptance", HOPELESS, READS),
        ("link", FAR, READS),
        ("device", GOOD._replace(draft_s=0.3), READS),
        ("step", GOOD._replace(delay_s=0.001, draft_s=0.0005, first=0.7, later=0.6), COMPUTES),
    ],
)
def test_a_device_that_does_not_help_is_not_waited_for_and_told_to_rest(cause, forecast, profile):
    """And why, once."""
    (piece,) = plan(drafting(forecast=forecast), profile=profile).slices
    assert piece.hint == 0 and piece.why and piece.why.cause == cause
    assert piece.why.gain < 1 and piece.why.server_rate > 0 and piece.why.step_times >= 1
    (later,) = plan(drafting(forecast=forecast, hint=0), profile=profile).slices
    assert later.hint == 0 and later.why is None


def test_an_unknown_device_gets_no_advice_and_is_not_waited_for():
    assert hints(plan(view(server_drives=False))) == {1: None}


def test_a_device_that_drafts_is_waited_for_before_it_has_heard_a_hint():
    """Its first block came too late; the server wrote on by itself while it drafted the second one."""
    assert chosen(plan(drafting(hint=None))) == []


def test_the_server_does_not_start_without_drafts_that_are_about_to_come():
    """A step takes 31 ms; in 3 ms there are five more to be in it."""
    soon = [drafting(id, asked_since=NOW - 0.039, waiting_since=NOW - 0.039) for id in range(2, 7)]
    ready = view(ready_since=NOW - 0.05)  # during a step, or while the target is free
    found = plan(ready, *soon)
    assert found.slices == () and NOW < found.wake_at < NOW + 0.01
    assert chosen(plan(view(), *soon[:1], now=NOW + 0.001)) in ([1], [])
    again = Snapshot((ready, *soon), replace(found.memory, free_since=NOW - 0.05))
    assert 1 in chosen(Goodput(WAIT).plan(again, READS, NOW)), "nobody is held up for long"


def test_where_tokens_cost_what_they_are_worth_nobody_drafts():
    crowd = [drafting(id, draft=4) for id in range(1, 30)]
    assert ordered(plan(*crowd, profile=COMPUTES)) == {0}
    assert min(hint or 0 for hint in hints(plan(*crowd, profile=READS)).values()) > 0


def test_drafts_are_cut_where_their_tokens_cost_more_than_they_are_worth():
    doubtful = GOOD._replace(first=0.3, later=0.3)
    crowd = [drafting(id, draft=8, forecast=doubtful) for id in range(1, 25)]
    assert max(piece.draft or 0 for piece in plan(*crowd, profile=COMPUTES).slices) < 4
    assert {piece.draft for piece in plan(*crowd, profile=READS).slices} <= {None, 8}


def test_a_rule_that_needs_long_drafts_gets_whole_ones_or_none():
    crowd = [drafting(id, draft=15, least=15) for id in range(1, 30)]
    assert set(hints(plan(*crowd[:2], profile=READS)).values()) == {15}
    assert ordered(plan(*crowd, profile=COMPUTES)) == {0}
    short = [drafting(id, draft=8, least=15, longest=8) for id in (1, 2)]
    assert set(hints(plan(*short, profile=READS)).values()) == {0}, (
        "the server takes none that is long enough"
    )
    doubtful = GOOD._replace(first=0.3, later=0.3)
    both = [
        drafting(1, draft=15, forecast=doubtful, least=15),
        *[drafting(id, draft=8, forecast=doubtful) for id in range(2, 25)],
    ]
    pieces = {piece.session: piece.draft for piece in plan(*both, profile=COMPUTES).slices}
    assert pieces[1] == 15 and max(pieces[id] or 0 for id in range(2, 25)) < 4


# -- a full step ------------------------------------------------------------------------------------------------


def of(budget: int) -> HardwareProfile:
    return HardwareProfile(budget, READS.cost)


def test_drafts_are_shortened_before_anybody_is_delayed():
    found = plan(*[drafting(id, draft=4) for id in range(1, 5)], profile=of(12))
    assert [piece.draft for piece in found.slices] == [2, 2, 2, 2]


def test_background_sessions_give_way_but_not_for_ever():
    sessions = [view(1, background=True), view(2), view(3)]
    assert chosen(plan(*sessions, profile=of(2))) == [2, 3]
    sessions[0] = view(1, background=True, ready_since=NOW - BACKGROUND_S - 0.1)
    assert 1 in chosen(plan(*sessions, profile=of(2)))


@pytest.mark.parametrize(("gives_way", "seconds"), [("background", BACKGROUND_S), ("runs_on", LONG_S)])
def test_where_a_token_is_dear_others_pass_also_in_a_step_with_room(gives_way, seconds):
    others = [view(2), view(3)]
    assert chosen(plan(view(1, **{gives_way: True}), *others, profile=COMPUTES)) == [2, 3]
    due = view(1, **{gives_way: True}, ready_since=NOW - seconds - 0.01)
    assert sorted(chosen(plan(due, *others, profile=COMPUTES))) == [1, 2, 3]
    alone = [view(id, **{gives_way: True}) for id in (1, 2)]
    assert chosen(plan(*alone, profile=COMPUTES)) == [1, 2], "nobody is there to pass"
    assert len(chosen(plan(view(1, **{gives_way: True}), *others))) == 3, "it costs them nothing"


def test_who_is_ahead_of_his_pace_lets_others_pass():
    ahead, behind = view(1, pace=5.0, due=NOW + 0.5), view(2, pace=5.0, due=NOW - 0.1)
    assert chosen(plan(ahead, behind, profile=of(1))) == [2]


def test_a_long_prompt_gets_a_share_of_a_full_step_and_no_more():
    sessions = [view(id) for id in range(1, 40)]
    found = plan(*sessions, view(40, uncomputed=500), profile=of(20))
    (chunk,) = [piece for piece in found.slices if piece.session == 40]
    assert not chunk.decide and 1 <= chunk.tokens <= 10
    assert len(found.slices) + chunk.tokens - 1 == 20


def test_a_short_prompt_does_not_wait_for_a_long_one_that_came_before():
    long, short = view(1, uncomputed=900, ready_since=NOW - 1), view(2, uncomputed=20)
    first, second = plan(long, short, profile=of(100)).slices
    assert (first.session, first.tokens, first.decide) == (2, 20, True)
    assert (second.session, second.tokens, second.decide) == (1, 80, False)


def test_short_prompts_leave_half_of_what_is_left_to_a_long_one():
    short = [view(id, uncomputed=20) for id in range(2, 10)]
    found = plan(view(1, uncomputed=900, ready_since=NOW - 1), *short, profile=of(100))
    assert {piece.session: piece.tokens for piece in found.slices} == {2: 20, 3: 20, 1: 60}


def test_a_short_prompt_in_the_background_passes_nobody():
    long, short = view(1, uncomputed=900), view(2, uncomputed=20, background=True)
    assert chosen(plan(long, short, profile=of(100))) == [1]


def test_the_end_of_a_prompt_decides():
    (piece,) = plan(view(uncomputed=30)).slices
    assert piece.decide and piece.tokens == 30


def test_kv_that_was_lost_is_computed_again_while_its_device_drafts():
    found = plan(drafting(1, uncomputed=9), view(2))
    assert Slice(1, 8, False, ahead=True) in found.slices


# -- who is not served ------------------------------------------------------------------------------------------


def test_nothing_is_written_for_readers_who_are_slow_or_gone():
    slow, gone = view(1, paused=True), view(2, absent=True)
    found = plan(slow, gone)
    assert (found.slices, found.wake_at) == ((), inf)
    assert chosen(plan(drafting(1, draft=2, paused=True), gone)) == [1], "a draft is answered all the same"


def test_drafts_of_who_may_not_draft_are_not_verified():
    (piece,) = plan(drafting(draft=4, longest=0)).slices
    assert (piece.draft, piece.hint) == (0, 0)


def test_hints_keep_to_what_a_session_may_be_asked_for():
    assert 0 < (hints(plan(drafting(1, draft=2, longest=3)))[1] or 0) <= 3


# -- looking back -----------------------------------------------------------------------------------------------


def test_a_device_that_was_told_to_rest_is_asked_again_in_the_long_run():
    """The last thing known of it was bad; things change."""
    resting = view(hint=0, forecast=HOPELESS)
    memory, heard, now = None, [], NOW
    while now < NOW + 60:
        seen = Snapshot((replace(resting, waiting_since=now, ready_since=now),), memory)
        found = Goodput(WAIT).plan(seen, READS, now)
        heard += [piece.hint for piece in found.slices]
        memory, now = found.memory, now + 0.1
    assert heard[0] == 0 and heard.count(0) > len(heard) / 2
    assert any(hint for hint in heard), "it was never asked again"


@pytest.mark.parametrize("accepted", [0, 1])
def test_a_device_that_rests_after_one_token_is_asked_again_within_some_answers(accepted):
    """Its one draft came so late that the pause before the next try is longer than all its answers."""
    book, asked, now = DeviceBook(), [], NOW
    for answer in range(40):
        estimate = book.of("", "kitchen")
        if not answer:
            estimate.add_arrival(9.0, 1, 8.0)
            estimate.add_verdict(1, accepted)
            estimate.device.hint = 0
        memory, heard = None, 0
        for _ in range(30):  # 3 s
            now += 0.1
            session = view(answer, hint=0, forecast=estimate.forecast, waiting_since=now, ready_since=now)
            found = Goodput(WAIT).plan(Snapshot((session,), memory), READS, now)
            memory, heard = found.memory, heard + sum(piece.hint or 0 for piece in found.slices)
        if heard:
            for _ in range(2):  # one answer is not enough
                estimate.device.add_draft()
            asked.append(answer)
    assert asked[0] <= RESTED + 1 and len(asked) >= 6
    assert max(later - before for before, later in pairwise(asked)) <= RESTED + 1


def test_a_pace_is_kept_also_where_drafting_would_commit_more():
    """Rounds of 0.2 s are worth it for who needs no token soon; who was promised some every 33 ms is decoded."""
    far = GOOD._replace(delay_s=0.15, first=1.0, later=1.0)
    easy, hasty = drafting(draft=4, forecast=far), drafting(draft=4, forecast=far, pace=30.0, due=NOW)
    assert hints(plan(easy))[1]
    assert hints(plan(hasty)) == {1: 0}


# -- the first answers ------------------------------------------------------------------------------------------

SLOW_STEPS = HardwareProfile(256, Roofline(read_s=0.2, token_s=1e-6))
SLOW_ROWS = HardwareProfile(256, Roofline(read_s=0.1, token_s=0.02))


def test_a_device_that_pays_drafts_from_its_first_review_on():
    """With steps of 0.2 s three reviews took as long as an answer; nobody had chosen the rule before them."""
    memory = Goodput(WAIT).plan(Snapshot((view(),), None), SLOW_STEPS, NOW - 1).memory
    seen = Snapshot((drafting(draft=4, hint=None),), memory)
    assert hints(Goodput(WAIT).plan(seen, SLOW_STEPS, NOW + 2))[1]


def test_a_device_whose_times_are_guesses_is_not_told_to_rest_at_once():
    """By the guess about unknown devices this one is too slow for steps of 6 ms."""
    fast = HardwareProfile(256, Roofline(read_s=0.005, token_s=1e-6))
    unknown = drafting(draft=4, hint=None, forecast=Forecast(drafts=0))
    found = Goodput(WAIT).plan(Snapshot((unknown,), None), fast, NOW)
    assert hints(found)[1], "it rested before anything was known of it"


def test_what_is_much_better_is_taken_at_once():
    """A choice made before the cost of steps was known need not be kept for three reviews."""
    first = Goodput(WAIT).plan(Snapshot((drafting(draft=4, forecast=FAR),), None), SLOW_STEPS, NOW - 2)
    assert hints(first) == {1: 0}
    later = Snapshot((drafting(draft=4, hint=0),), first.memory)
    assert Goodput(WAIT).plan(later, SLOW_STEPS, NOW).memory.hints[1]  # by choice, not as a probe


def test_the_first_draft_of_a_device_is_verified_at_once():
    """Between two reviews nobody had asked for it: it was left out, and each such block cost a step more."""
    memory = Goodput(WAIT).plan(Snapshot((view(),), None), SLOW_ROWS, NOW - 0.5).memory
    first = Snapshot((drafting(draft=5, hint=None, forecast=Forecast(drafts=1, delay_s=0.01)),), memory)
    found = Goodput(WAIT).plan(first, SLOW_ROWS, NOW)
    assert found.slices[0].draft and hints(found)[1]


# -- reviews ----------------------------------------------------------------------------------------------------


def test_a_pace_is_kept_in_the_time_that_prompts_leave():
    """A pace between both rates of a session: within reach without prompts, and not beside them."""
    sessions = [view(pace=0.75 / READS.cost.verify_s(1, 50, 1))]
    alone, beside = (DraftPlanner(sessions, READS, writing=writing) for writing in (1.0, 0.5))
    arms = np.zeros((1, 1), int)
    assert alone.assignments(arms)[0].worth > 2 * beside.assignments(arms)[0].worth


def test_the_time_of_a_prompt_is_no_loss_of_those_who_write_beside_it():
    """Users whose steps prompts had made long seemed to write badly without drafts, and drafts to be worth more."""
    policy, memory, now = Goodput(WAIT), None, NOW
    for step in range(20):
        writing, reading = view(1, context=50 + step), view(2, uncomputed=30_000, waiting_since=NOW)
        found = policy.plan(Snapshot((writing, reading), memory), COMPUTES, now)
        memory, now = found.memory, now + COMPUTES.cost.verify_s(256, 50, 2)
    assert isinstance(memory, GoodputState)
    assert memory.outcomes.others.ratio(1.0) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("users", [1, 2, 20])
def test_each_step_has_a_session(users):
    """The only user's draft is verified in steps of its own; many users' drafts are spread over the steps."""
    planner = DraftPlanner([drafting(id) for id in range(users)], COMPUTES)
    found = planner.assignments(np.full((1, users), 4))[0]  # 4 tokens each, 40 ms away
    share = float(found.shares[0])
    present = users * share / (1 - (1 - share) ** users)  # sessions of a step, since it has one
    assert found.step_s == pytest.approx(COMPUTES.cost.verify_s(5 * present, 50 * present, present), rel=0.02)
    assert (present == pytest.approx(1)) is (users == 1)


def test_reviews_come_at_their_time_and_when_many_come_or_go():
    one, many = [drafting()], [drafting(id) for id in range(1, 5)]
    state = current(None, one, READS, NOW)
    assert current(state, one, READS, NOW + 0.9 * REVIEW_S) is state
    assert current(state, one, READS, NOW + REVIEW_S).reviewed == NOW + REVIEW_S
    assert current(state, many, READS, NOW + 0.1).reviewed == NOW + 0.1


def test_no_uniform_assignment_is_clearly_better_than_the_one_that_is_taken():
    """Tokens and promises count and nothing else; what changes must gain a share of the tokens/s that it touches."""
    for seed, cost in enumerate(COSTS):
        planner = DraftPlanner(crowd(seed, 20, NOW).sessions, HardwareProfile(512, cost))
        plain = planner.assignments(np.zeros((1, 20), int))[0]
        best = planner.best(np.zeros(20, int))
        for arm, allowed in enumerate(planner.allowed):
            found = planner.assignments(np.where(allowed, arm, 0)[None])[0]
            assert best.worth >= found.worth - OWN_BETTER * plain.rates[found.arms != plain.arms].sum()
        assert planner.best(best.arms).worth >= best.worth, "a second look never makes it worse"


# -- what came of plans, beside what they promised ----------------------------------------------------------------


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


def test_drafts_that_bring_less_than_was_planned_count_for_less():
    assert worth_after(lambda one: 12 if one.drafts else 20) == pytest.approx(0.6, abs=0.1)
    assert worth_after(lambda one: 20) == pytest.approx(1.0)


def test_a_server_that_is_slow_for_all_says_nothing_of_drafts():
    assert worth_after(lambda one: 10) == pytest.approx(1.0, abs=0.01)
    assert worth_after(lambda one: 0) == pytest.approx(1.0, abs=0.01)


def test_who_has_just_begun_to_draft_tells_nothing_yet():
    known = {1: Expected(50, 20.0, True, NOW)}
    assert NOTHING_SEEN.after(known, [view(1)], 1.0, NOW - 1) == NOTHING_SEEN
