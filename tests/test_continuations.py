"""Continuations at the server, step by step: drafts that were sent before the verdict on the one before them."""

from __future__ import annotations

import pytest

from opensled.errors import FutureBase, InvalidRequest, Unsupported
from opensled.messages import Draft, DraftBlock, DraftToken, Moved, Verdict
from scheduler.estimates import DraftEstimate
from scheduler.plan import Slice
from tests.fakes import VOCAB, FakeEngine, continuation
from tests.sessions import made
from tests.system import read_now
from verify_server.draft_budget import Quota
from verify_server.drafting.base import Proposal
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.own_draft import OwnDraft
from verify_server.session import DraftLimits
from verify_server.step import run_step
from verify_server.step_item import StepItem

PROMPT = [3, 1, 4, 1, 5]
BASE = len(PROMPT)
RIGHT = continuation(PROMPT, 40)  # what the target writes
WRONG = 1 + RIGHT[3] % 40


class Bench:
    """One session, whose steps are begun and ended by hand."""

    def __init__(self, limits: DraftLimits = DraftLimits(VOCAB, 8, continuations=True), max_tokens: int = 24):
        self.engine, self.pool = FakeEngine(num_blocks=32), BlockPool(32, 4)
        self.session = made(1, PROMPT, max_tokens, BlockTable(self.pool), limits)
        self.session.attach(BASE)

    def send(self, counter: int, base: int, ids: list[int], continues: int = 0, now: float = 0.0) -> bool:
        block = DraftBlock(base, tuple(map(DraftToken, ids)))
        return self.session.submit(Draft(counter, block, 0.5, continues), now)

    def first(self, *ids: int) -> None:
        assert self.send(1, BASE, list(ids) or RIGHT[:3])

    def second(self, *ids: int, now: float = 0.0) -> bool:
        return self.send(2, BASE + 3, list(ids) or RIGHT[3:6], continues=1, now=now)

    def begin(self, draft: int | None = None, hint: int | None = None) -> StepItem:
        sequence = self.session.sequence
        piece = Slice(1, len(sequence) - sequence.computed, True, draft=draft, hint=hint)
        return self.session.plan(piece, 0.0)

    def end(self, item: StepItem, now: float = 1.0) -> Verdict:
        self.session.commit(item, run_step(self.engine, [item])[0], now)
        return self.heard()

    def heard(self) -> Verdict:
        return read_now(self.session.outbox)

    @property
    def is_silent(self) -> bool:
        return not len(self.session.outbox)


@pytest.mark.parametrize("planned", [False, True], ids=["before its step", "in its step"])
def test_a_continuation_is_verified_in_the_next_step_if_the_first_block_stands(planned):
    bench = Bench()
    bench.first()
    if planned:
        item = bench.begin()
        assert bench.second()
    else:
        assert bench.second()
        item = bench.begin()
    assert item.drafted.ids == tuple(RIGHT[:3]), "each block has a step of its own"
    assert bench.end(item) == Verdict(BASE, tuple(RIGHT[:4]), 3, 1)
    assert bench.is_silent and bench.session.pending.rest.ids == tuple(RIGHT[4:6])
    computed = bench.engine.computed
    assert bench.end(bench.begin()) == Verdict(BASE + 4, tuple(RIGHT[4:7]), 2, 2)
    assert bench.engine.computed == computed + 3, "the bonus token and what follows it"
    assert bench.session.turn.awaits_draft


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "news"),
    [
        ([*RIGHT[:2], 1 + RIGHT[2] % 40], RIGHT[3:6], RIGHT[:3]),  # the first block fails at its last token
        ([1 + RIGHT[0] % 40, *RIGHT[1:3]], RIGHT[3:6], RIGHT[:1]),
        (RIGHT[:3], [WRONG, *RIGHT[4:6]], RIGHT[:4]),  # it stands, and the guess of the bonus token is wrong
    ],
)
def test_a_void_continuation_costs_no_step_and_no_message(planned, first, second, news):
    bench = Bench()
    bench.first(*first)
    item = bench.begin() if planned else None
    assert bench.second(*second), "an honest device cannot know"
    assert bench.end(item or bench.begin()).tokens == tuple(news)
    session = bench.session
    assert bench.is_silent and session.pending is None and session.following is None
    assert session.turn.unanswered == () and session.awaits_draft and session.stats.void == 1
    assert session.stats.stale == 0 and session.stats.drafts.drafts == 1
    bench.send(3, BASE + len(news), RIGHT[len(news) : len(news) + 2])
    assert bench.end(bench.begin()).answers == 3


def test_a_continuation_that_comes_after_the_verdict_is_judged_by_that_verdict():
    bench = Bench()
    bench.first()
    bench.end(bench.begin())
    bench.end(bench.begin())  # the device is late: the server goes on by itself
    assert bench.second() and bench.session.pending.rest.ids == tuple(RIGHT[5:6])
    assert bench.end(bench.begin()).answers == 2
    bench = Bench()
    bench.first(*RIGHT[:2], WRONG)
    bench.end(bench.begin())
    assert bench.second() and bench.is_silent and bench.session.stats.void == 1
    assert bench.session.pending is None, "though it begins where the truth ends"


def test_a_late_continuation_that_the_server_has_overtaken_elsewhere_is_answered():
    """It stood when its draft was decided, so its device waits for a verdict."""
    bench = Bench()
    bench.first()
    bench.end(bench.begin())
    bench.end(bench.begin())
    assert bench.second(RIGHT[3], WRONG)
    assert bench.heard() == Verdict(BASE + 4, (RIGHT[4],), 0, 2) and bench.session.stats.stale == 1


def test_where_a_part_of_the_first_block_was_verified_its_rest_goes_with_the_continuation():
    bench = Bench(DraftLimits(VOCAB, 4, continuations=True))
    bench.first()
    bench.second()
    assert bench.end(bench.begin(draft=1)).tokens == tuple(RIGHT[:2])
    assert bench.session.pending.rest == DraftBlock(BASE + 2, tuple(map(DraftToken, RIGHT[2:6])))
    verdict = bench.end(bench.begin())
    assert (verdict.answers, verdict.num_accepted, verdict.tokens) == (2, 4, tuple(RIGHT[2:7]))


def test_continuations_follow_each_other():
    bench = Bench()
    bench.first()
    bench.second()
    bench.end(bench.begin())
    item = bench.begin()
    assert bench.send(3, BASE + 6, RIGHT[6:9], continues=2)
    assert bench.end(item).tokens == tuple(RIGHT[4:7])
    assert bench.end(bench.begin()) == Verdict(BASE + 7, tuple(RIGHT[7:10]), 2, 3)


def test_a_new_draft_replaces_a_block_and_its_continuation():
    bench = Bench()
    bench.first()
    bench.second()
    assert not bench.send(3, BASE, [WRONG, 2]), "it takes another one's place"
    assert bench.end(bench.begin()) == Verdict(BASE, tuple(RIGHT[:1]), 0, 3)
    assert bench.session.following is None and bench.session.turn.unanswered == ()


def test_a_continuation_is_free_once_for_each_draft():
    bench = Bench()
    bench.first()
    assert bench.second()
    assert not bench.second(), "a repeated frame"
    assert not bench.send(3, BASE + 6, RIGHT[6:9], continues=2), "a second one before the verdict"
    assert not bench.send(4, BASE + 3, RIGHT[3:6], continues=1), "one of an older draft"
    assert not bench.send(5, BASE + 3, RIGHT[3:6], continues=4), "one of a draft that never came"
    assert bench.end(bench.begin()).answers == 1 and bench.end(bench.begin()).answers == 2


@pytest.mark.parametrize(
    ("limits", "base", "ids", "error", "field"),
    [
        (DraftLimits(VOCAB, 8), BASE + 3, [1], Unsupported, "continues"),
        (DraftLimits(VOCAB, 8, continuations=True), BASE + 3, [], InvalidRequest, "tokens"),
        (DraftLimits(VOCAB, 8, continuations=True), BASE + 3, [1] * 9, InvalidRequest, "tokens"),
        (DraftLimits(VOCAB, 8, continuations=True), BASE + 3, [VOCAB], InvalidRequest, "tokens"),
        (DraftLimits(VOCAB, 8, continuations=True), BASE + 2, [1], FutureBase, ""),
        (DraftLimits(VOCAB, 8, continuations=True), BASE + 4, [1], FutureBase, ""),
    ],
)
def test_a_bad_continuation_is_a_typed_error_and_changes_nothing(limits, base, ids, error, field):
    bench = Bench(limits)
    bench.first()
    with pytest.raises(error) as caught:
        bench.send(2, base, ids, continues=1)
    assert getattr(caught.value, "field", "") == field
    assert bench.end(bench.begin()) == Verdict(BASE, tuple(RIGHT[:4]), 3, 1) and bench.session.pending is None


def test_a_base_beyond_the_truth_is_an_error_where_it_continues_nothing():
    bench = Bench()
    bench.first()
    with pytest.raises(FutureBase, match="only 5 are committed"):
        bench.send(2, BASE + 3, RIGHT[3:6])


def test_a_hint_of_zero_answers_what_was_on_its_way_and_goes_on():
    bench = Bench()
    bench.first()
    bench.second()
    assert bench.end(bench.begin(hint=0)).hint == 0
    assert bench.session.server_drives and bench.end(bench.begin()).answers == 2
    assert not bench.session.awaits_draft and bench.end(bench.begin()).answers == 0


def test_an_answer_that_ends_within_the_first_block_ends_once():
    bench = Bench(max_tokens=2)
    bench.first()
    item = bench.begin()
    bench.second()
    assert bench.end(item) == Verdict(BASE, tuple(RIGHT[:2]), 2, 1, "length")
    assert bench.is_silent and bench.session.pending is None


@pytest.mark.parametrize("in_step", [False, True])
def test_a_reader_who_goes_elsewhere_takes_the_continuation_along(in_step):
    bench = Bench()
    bench.first()
    bench.second()
    item = bench.begin() if in_step else None
    bench.session.hand_over()
    if item:
        bench.end(item)
        assert bench.is_silent, "the loop hands over once more when the step ends"
        bench.session.hand_over()
    assert bench.heard() == Moved() and bench.session.pending is None and bench.session.following is None


def test_a_new_stream_of_the_reader_knows_nothing_of_what_was_sent_on():
    bench = Bench()
    bench.first()
    item = bench.begin()
    bench.second()
    bench.session.attach(BASE)
    assert bench.end(item).tokens == tuple(RIGHT[:4]) and bench.session.pending is None
    assert bench.send(2, BASE, RIGHT[:6]), "what the device sends again: both as one"
    assert bench.end(bench.begin()) == Verdict(BASE, tuple(RIGHT[:7]), 6, 2)


def test_times_of_drafts_are_learned_from_those_that_were_waited_for():
    bench = Bench()
    bench.first()
    times = bench.session.timing.estimate.forecast
    item = bench.begin()
    bench.second(now=0.4)
    bench.end(item, now=1.0)
    assert bench.session.pending.since == 1.0 and bench.session.timing.waiting_since == 1.0
    bench.end(bench.begin(), now=2.0)
    assert bench.session.timing.estimate.forecast[2:7] == times[2:7]
    bench.send(3, BASE + 7, RIGHT[7:9], now=2.5)
    assert bench.session.timing.estimate.forecast.drafts == times.drafts + 1


@pytest.mark.parametrize("planned", [False, True], ids=["after its step", "in its step"])
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (RIGHT[:3], RIGHT[3:6], True),
        (RIGHT[:3], [WRONG, *RIGHT[4:6]], False),
        (RIGHT[:3], None, False),
        ([*RIGHT[:2], 1 + RIGHT[2] % 40], RIGHT[3:6], None),  # of a block that fails nothing is learned
    ],
)
def test_how_often_a_block_that_stands_is_continued_is_learned(planned, first, second, expected):
    learned = []

    class Listening(DraftEstimate):
        def continued(self, stands):
            learned.append(stands)

    bench = Bench()
    bench.session.timing.estimate = Listening()
    bench.first(*first)
    item = bench.begin()
    if second and planned:
        bench.second(*second)
    bench.end(item)
    if second and not planned:
        bench.second(*second)
    base = len(bench.session.sequence)
    bench.send(3, base, RIGHT[base - BASE :][:2])
    assert learned == ([] if expected is None else [expected])


def test_acceptance_is_judged_on_what_was_verified():
    judged = []

    class Listening(DraftEstimate):
        def judged(self, length, accepted, tried=()):
            judged.append((length, accepted, [stands for _, stands in tried]))

    bench = Bench()
    bench.session.timing.estimate = Listening()
    bench.first()
    bench.second(RIGHT[3], RIGHT[4], WRONG)
    bench.end(bench.begin())
    bench.end(bench.begin())
    assert judged == [(3, 3, [True] * 3), (2, 1, [True, False])], (
        "the guess of the bonus token is none of them"
    )
    assert (bench.session.stats.drafts.tokens, bench.session.stats.drafts.accepted) == (5, 4)


def test_only_what_is_verified_counts_for_a_quota():
    bench = Bench()
    bench.session.budget.quota = quota = Quota(10.0, 0.0)
    bench.first(WRONG, 1, 2)
    bench.second()
    left = quota.left(0.0)
    bench.end(bench.begin())
    assert quota.left(0.0) == left - 3 and bench.session.budget.record.verified == 1


def test_the_servers_own_draft_goes_beside_a_continuation():
    bench = Bench(DraftLimits(VOCAB, 8, max_tree=16, continuations=True))
    bench.session.own = OwnDraft(DraftEstimate())
    bench.first()
    bench.second(RIGHT[3], WRONG)
    bench.end(bench.begin())
    own = DraftBlock(BASE + 4, tuple(map(DraftToken, RIGHT[4:7])))
    bench.session.take_own(Proposal(own), 3)
    verdict = bench.end(bench.begin())
    assert (verdict.answers, verdict.num_accepted, verdict.tokens) == (2, 0, tuple(RIGHT[4:8]))


def test_tokens_per_round_are_those_of_the_blocks_alone():
    """Two blocks under way commit what each of them commits by itself: nothing is lost or counted twice."""
    bench, counter = Bench(max_tokens=23), 1
    bench.first()
    answers = []
    while not bench.session.sequence.finish_reason:
        item, chain = bench.begin(), bench.session.turn.unanswered[-1].block
        end = chain.base + len(chain.tokens)
        counter += 1
        bench.send(counter, end, RIGHT[end - BASE : end - BASE + 3], continues=counter - 1)
        answers.append(bench.end(item))
    assert [answer.answers for answer in answers] == list(range(1, len(answers) + 1))
    assert [len(answer.tokens) for answer in answers[:-1]] == [4, *[3] * (len(answers) - 2)]
    assert [token for answer in answers for token in answer.tokens] == RIGHT[:23]
