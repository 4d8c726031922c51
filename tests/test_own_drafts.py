"""Who drafts under policy `goodput`: nobody, the device, the server; and what the server learns of its own drafts."""

import random
from dataclasses import replace

import numpy as np
import pytest

from hw_profiles.drafting_cost import DraftingCostModel
from hw_profiles.speculation import tokens_beside
from hw_profiles.step_cost import DraftingCost, HardwareProfile, Roofline
from opensled.core.errors import InvalidRequest
from opensled.core.messages import Draft, DraftBlock, DraftToken
from opensled.core.trees import confidences, likeliest_first, list_trials, together
from opensled.wire import codec
from scheduler.confidences import ConfidenceCalibration
from scheduler.estimates import DeviceBook, DraftEstimate, Forecast
from scheduler.goodput.assignment import DraftPlanner
from scheduler.goodput.policy import Goodput
from scheduler.goodput.probes import PAUSE
from scheduler.goodput.rounds import LENGTHS
from scheduler.goodput.state import Asks, GoodputState, Lengths
from scheduler.plan import OfferView, SessionView, Slice, Snapshot
from tests.goodput_plans import COMPUTES, FAR, GOOD, HOPELESS, NOW, READS, WAIT, drafting, plan, view
from verify_server.round.drafter import Proposal
from verify_server.round.server_source import ServerDrafts

CHEAP = DraftingCost(1e-3, 0.0, 1e-5)  # beside a step of 30 ms
DEAR = DraftingCost(0.1, 0.0, 1e-5)  # a token costs three steps
SURE = Forecast(0.9, 0.9)


def server(drafting: DraftingCost = CHEAP, profile: HardwareProfile = READS) -> HardwareProfile:
    """A server with a drafter beside its target."""
    return replace(profile, drafting=(drafting,) if drafting else ())


def own(id: int = 1, **fields: object) -> SessionView:
    """A session for which the server can draft."""
    return view(id, **{"own_forecast": SURE, **fields})


def only(*sessions: SessionView, profile: HardwareProfile) -> Slice:
    (piece,) = plan(*sessions, profile=profile).slices
    return piece


READING = DraftingCost(1e-3, 0.0, 1e-3)
# A session, its server, and whether its drafter and its device are asked; None = it does not matter.
ASKED = {
    "a cheap drafter, where rows are free": (own(), server(), True, None),
    "one whose cost is not known yet": (own(), READS, True, None),
    "also beside a device, which is another source": (own(forecast=FAR, hint=0), READS, None, False),
    "none that costs more than it brings": (own(), server(DEAR), False, None),
    "none where each row costs a token": (own(own_forecast=HOPELESS), server(profile=COMPUTES), False, None),
    "no device that is not needed": (own(forecast=FAR, hint=4, draft=4), server(), True, False),
    "a device beside a drafter that is too dear": (drafting(draft=4, own_forecast=SURE), server(DEAR), False, True),
    "a device beside one that proposes hardly anything": (
        drafting(draft=4, own_forecast=SURE, own_share=0.02), server(), None, True,
    ),
    "no text is read for a short answer": (own(own_unread=2000, left=4), server(READING), False, None),
    "it is for a long one": (own(own_unread=20, left=400), server(READING), True, None),
}  # fmt: skip


@pytest.mark.parametrize("case", ASKED)
def test_who_is_asked_for_drafts(case):
    session, profile, drafter, device = ASKED[case]
    piece = only(session, profile=profile)
    assert drafter in (None, piece.ask > 0) and device in (None, bool(piece.hint))


def test_a_session_for_which_the_server_cannot_draft_is_decoded():
    pieces = {piece.session: piece.ask for piece in plan(own(1), view(2), profile=server()).slices}
    assert pieces[1] > 0 and pieces[2] == 0


def test_the_own_draft_is_verified_as_far_as_it_is_likely():
    reach = (0.9, 0.8, 0.05, 0.04)
    assert only(own(own=4, own_reach=reach), profile=server(profile=COMPUTES)).own in (0, 2)
    assert only(own(own=4, own_reach=reach), profile=server()).own == 4  # rows are free


def test_own_drafts_and_those_of_devices_share_the_step():
    tight = replace(server(), max_step_tokens=10)
    pieces = plan(own(1, own=6), drafting(2, draft=6), profile=tight).slices
    assert sum(piece.tokens + (piece.own or 0) + (piece.draft or 0) for piece in pieces) <= 10


def asked_over(seconds: int, session: SessionView, profile: HardwareProfile) -> int:
    """In how many of ten plans a second the server's drafter is asked."""
    policy, memory, count = Goodput(WAIT), None, 0
    for tenth in range(10 * seconds):
        found = policy.plan(Snapshot((session,), memory), profile, NOW + tenth / 10)
        memory = found.memory
        count += sum(piece.ask > 0 for piece in found.slices)
    return count


def test_of_several_drafters_each_session_has_the_one_that_pays():
    """The first one costs nothing; the second one, a pass for each token, and it is right where that is not."""
    cheap, dear = OfferView(forecast=SURE), OfferView(forecast=SURE)
    wrong = OfferView(forecast=HOPELESS)
    views = {1: (cheap, dear), 2: (wrong, dear), 3: (cheap, wrong), 4: (wrong, wrong), 5: (cheap,)}
    sessions = [replace(view(id), servers=servers) for id, servers in views.items()]
    profile = replace(READS, drafting=(DraftingCost(), CHEAP))
    found = orders(*sessions, profile=profile)[1]
    assert {id: drafter for id, (_, drafter) in found.items()} == {1: 0, 2: 1, 3: 0, 5: 0}
    assert all(tokens > 2 for tokens, _ in found.values())


@pytest.mark.parametrize(("second", "drafts"), [(DraftingCost(1e-4), True), (CHEAP, False)])
def test_passes_of_two_drafters_are_paid_for_apart(second, drafts):
    """Beside eight on the first one, for whose passes the second one does not wait: all would wait for both."""
    views = {id: (OfferView(forecast=SURE), OfferView(forecast=HOPELESS)) for id in range(8)}
    sessions = [replace(view(id), servers=servers) for id, servers in views.items()]
    lone = replace(view(8), servers=(OfferView(forecast=HOPELESS), OfferView(forecast=SURE)))
    found = orders(*sessions, lone, profile=replace(READS, drafting=(CHEAP, second)))[1]
    assert (8 in found) == drafts and set(range(8)) <= set(found)


def test_each_drafter_that_rests_is_tried():
    session = replace(view(), servers=(OfferView(forecast=HOPELESS), OfferView(forecast=HOPELESS)))
    policy, memory, asked = Goodput(WAIT), None, set()
    for tenth in range(600):
        found = policy.plan(Snapshot((session,), memory), server(TABLES), NOW + tenth / 10)
        memory = found.memory
        asked |= {piece.drafter for piece in found.slices if piece.ask}
    assert asked == {0, 1}


def test_a_drafter_that_does_not_pay_is_tried_now_and_then():
    seconds = 40
    assert 2 <= asked_over(seconds, own(), server(DEAR)) < 2 * seconds
    # With nothing but right drafts it would not pay either, if it costs as much as is assumed
    assert asked_over(seconds, own(), server(replace(DEAR, measured=True))) == 0


def test_a_text_is_read_for_a_trial_if_that_takes_no_longer_than_a_step():
    long = own(own_unread=500)  # of 30 ms with CHEAP and DEAR
    assert asked_over(40, long, server(DEAR)) > 0
    assert asked_over(40, long, server(replace(DEAR, read_s=1e-3))) == 0


# -- what is learned --------------------------------------------------------------------------------------------


def test_confidences_are_corrected_by_what_stood():
    calibration = ConfidenceCalibration()
    assert calibration.chance(0.95) == pytest.approx(0.95)
    for _ in range(200):
        calibration.add_verdict([(0.95, False), (0.25, True), (1.0, False)])
    assert calibration.chance(0.95) < 0.1
    assert calibration.chance(0.25) > 0.9


@pytest.mark.parametrize(
    "real", [DraftingCost(8e-3, 1e-3, 1e-3), DraftingCost(0.0, 2e-5, 1e-6), DraftingCost(8e-3, 0.0, 0.0)]
)
def test_the_cost_of_drafting_is_learned(real):
    model = DraftingCostModel(DraftingCost(0.01, 0.0, 1e-3))
    for step in range(300):
        longest, sessions, read = 1 + step % 8, 1 + step % 5, step % 7
        tokens = 1 + longest * sessions // 2
        model.observe(longest, tokens, read, real.seconds(longest, tokens, read))
    for longest, tokens, read in ((4, 4, 5), (8, 30, 12), (1, 1, 200)):
        assert model.cost.seconds(longest, tokens, read) == pytest.approx(
            real.seconds(longest, tokens, read), rel=0.1, abs=2e-4
        )


def an_own_draft(**options: bool) -> ServerDrafts:
    return ServerDrafts(DeviceBook().of("t", ""), **options)


def proposal(*confidences: float, unread: int = 0) -> Proposal:
    return Proposal(DraftBlock(5, tuple([DraftToken(1, each) for each in confidences])), unread=unread)


@pytest.mark.parametrize("confidence, better", [(0.9, True), (0.3, False)])
def test_what_was_not_verified_counts_as_its_confidence_says(confidence, better):
    draft = an_own_draft()
    before = draft.estimate.forecast
    draft.take(proposal(0.9, confidence), 2)
    assert draft.offer is not None
    draft.judge(draft.offer, (1,))
    assert draft.estimate.forecast.first > before.first
    assert (draft.estimate.forecast.later > before.later) is better


def test_long_drafts_of_which_the_likely_half_is_verified_look_no_better_than_they_are():
    """Half of the tokens are easy, and stand nine times in ten; the others stand three times in ten."""
    rng, draft = random.Random(5), an_own_draft()
    for _ in range(400):
        chances = [rng.choice((0.9, 0.3)) for _ in range(8)]
        likely = next((place for place, chance in enumerate(chances) if chance < 0.5), 8)
        stands = next((place for place, chance in enumerate(chances) if rng.random() > chance), 8)
        draft.take(proposal(*chances), 8)
        assert draft.offer is not None
        taken = draft.offer._replace(verified=draft.offer.block.first(likely))
        draft.judge(taken, (1,) * min(stands, likely + 1) + (2,))
    found = draft.estimate.forecast
    assert (found.first, found.later) == (pytest.approx(0.6, abs=0.08), pytest.approx(0.6, abs=0.08))


def test_a_model_that_still_reads_is_not_taken_for_one_that_proposes_nothing():
    reads, empty = an_own_draft(), an_own_draft()
    for _ in range(20):
        reads.take(proposal(unread=300), 4)
        empty.take(proposal(), 4)
    assert reads.share.ratio == 1.0 and empty.share.ratio < 0.2


def test_a_new_session_expects_as_many_drafts_as_the_others_of_its_tenant_had():
    """Else its device would rest until it is seen that the server hardly drafts."""
    book = DeviceBook()
    for _ in range(3):
        one = ServerDrafts(book.of("chats", ""))
        for _ in range(20):
            one.take(proposal(), 4)
    assert ServerDrafts(book.of("chats", "")).share.ratio < 0.2
    assert ServerDrafts(book.of("others", "")).share.ratio == 1.0


def test_chances_are_told_by_drafters_that_know_them():
    sure, silent = an_own_draft(), an_own_draft()
    sure.take(proposal(0.5, 0.5), 2)
    silent.take(proposal(1.0, 1.0), 2)
    assert sure.offer and silent.offer
    assert sure.offer.reach == pytest.approx((0.5, 0.25)) and silent.offer.reach == ()


# -- two chains as one tree -------------------------------------------------------------------------------------


def chain(*ids: int) -> DraftBlock:
    return DraftBlock(5, tuple(map(DraftToken, ids)))


@pytest.mark.parametrize(
    ("first", "second", "ids", "parents"),
    [
        ((1, 2), (), (1, 2), ()),
        ((), (1, 2), (1, 2), ()),
        ((1, 2), (1, 2, 3), (1, 2, 3), ()),
        ((1, 2), (3, 4), (1, 2, 3, 4), (-1, 0, -1, 2)),
        ((1, 2, 5), (1, 3), (1, 2, 5, 3), (-1, 0, 1, 0)),
    ],
)
def test_two_chains_share_what_they_begin_with(first, second, ids, parents):
    found = together(chain(*first), chain(*second))
    assert (found.ids, found.parents) == (ids, parents)


# -- confidences of devices -------------------------------------------------------------------------------------


def test_confidences_travel_as_bytes():
    tokens = (DraftToken(3, 0.5), DraftToken(4), DraftToken(5, 0.0), DraftToken(6, 0.999))
    sent = codec.decode_client(codec.encode_client(Draft(1, DraftBlock(5, tokens))))
    assert isinstance(sent, Draft)
    assert confidences(sent.block) == pytest.approx((0.5, 1.0, 0.0, 1.0), abs=0.004)
    assert sent.block.tokens[3].confidence < 1


def test_a_drafter_that_does_not_say_sends_nothing():
    assert not codec.encode_client(Draft(1, DraftBlock(5, (DraftToken(3),)))).draft.confidences


def test_a_confidence_too_few_is_refused():
    message = codec.encode_client(Draft(1, DraftBlock(5, (DraftToken(3, 0.5), DraftToken(4, 0.5)))))
    message.draft.confidences = b"\x01"
    with pytest.raises(InvalidRequest, match="1 confidences for 2 draft tokens"):
        codec.decode_client(message)


def test_untold_tokens_stand_as_often_as_those_of_the_device_usually_do():
    estimate = DeviceBook().of("t", "")
    first, later = estimate.forecast.first, estimate.forecast.later
    assert estimate.reach((1.0, 1.0)) == ()
    assert estimate.reach((1.0, 0.5, 1.0)) == pytest.approx((first, first * 0.5, first * 0.5 * later))
    assert estimate.reach((0.5, 0.5, 0.2), (-1, 0, -1)) == pytest.approx((0.5, 0.25, 0.2))


def test_a_device_is_corrected_by_itself_and_a_new_one_by_its_tenant():
    book = DeviceBook()
    liar, neighbour = book.of("t", "liar"), book.of("u", "another")
    for _ in range(300):
        liar.add_verdict(1, 0, [(0.95, False)])
    assert liar.reach((0.95,))[0] < 0.1
    assert book.of("t", "new").reach((0.95,))[0] < 0.5
    assert neighbour.reach((0.95,)) == pytest.approx((0.95,))


def test_what_was_tried_of_a_tree():
    tree = DraftBlock(5, tuple([DraftToken(id, id / 10) for id in (1, 2, 3, 4)]), (-1, -1, 0, 1))
    assert list_trials(tree, (0,)) == [(0.1, True), (0.2, False), (0.3, False)]
    assert list_trials(chain(1, 2, 3), (0,)) == [(1.0, True), (1.0, False)]


def test_a_tree_is_verified_in_the_order_of_its_chances():
    tree = DraftBlock(5, tuple([DraftToken(id, 0.5) for id in (1, 2, 3)]), (-1, -1, 1))
    found = likeliest_first(tree, (0.1, 0.9, 0.8))
    assert (found.ids, found.parents) == ((2, 3, 1), (-1, 0, -1))


def test_what_a_device_is_unsure_of_is_not_verified_where_rows_cost():
    assert only(drafting(draft=4, reach=(0.95, 0.9, 0.1, 0.05)), profile=COMPUTES).draft in (0, 2)
    assert only(drafting(draft=4, reach=(0.95, 0.9, 0.1, 0.05)), profile=READS).draft == 4


def test_a_new_session_for_which_the_server_cannot_draft_is_decoded_beside_others():
    """What suits the others says nothing of it: it gets what is best for it beside them."""
    policy, memory, profile = Goodput(WAIT), None, server()
    others = [own(id, forecast=FAR, hint=0) for id in range(1, 31)]
    for tenth in range(40):
        memory = policy.plan(Snapshot((*others,), memory), profile, NOW + tenth / 10).memory
    assert isinstance(memory, GoodputState) and set(memory.asks) == set(range(1, 31))
    found = policy.plan(Snapshot((*others, view(31, forecast=GOOD)), memory), profile, NOW + 3.91)
    assert {piece.session: (piece.ask > 0, piece.hint) for piece in found.slices}[31] == (False, 8)


# -- device and server together -----------------------------------------------------------------------------------


NEAR = GOOD._replace(first=0.7, later=0.7, delay_s=0.002, draft_s=0.001, jitter_s=0.0005)
HALF = Forecast(0.6, 0.6)
# A sixth of a step for each pass: it pays, and less than a good device.
MIDDLING = DraftingCost(5e-3, 0.0, 1e-5)


# -- both -------------------------------------------------------------------------------------------------------


TABLES = DraftingCost()  # as good as nothing


def orders(
    *sessions: SessionView, drafting: DraftingCost = CHEAP, profile: HardwareProfile | None = None
) -> tuple[Lengths, Asks]:
    """What devices and the server draft, without probes."""
    found = plan(*sessions, profile=profile or server(drafting)).memory
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
    four = planner.assignments(np.full((1, 40), 1 + LENGTHS.index(4)))[0]
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
