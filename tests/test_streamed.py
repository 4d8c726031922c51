"""Drafts from a stream of tokens: those of a model with the same logits, and what cuts a stream."""

import logging
from itertools import islice

import pytest

from edge_client.drafters.base import NEAR, Drafter
from edge_client.drafters.outage import FIRST_PAUSE, LONGEST_PAUSE, Outage
from edge_client.drafters.streamed import LAG, Scored, StreamedDrafter
from edge_client.drafters.window import Window
from opensled.core.errors import DraftSourceError
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import DRAFT_CANDIDATES, Sampler, SparseSampler
from tests.drafter_contract import DrafterContract, ids, other_than, pull
from tests.emulated import Clock
from tests.fakes import Made
from tests.toy_stream import CONTEXT, ToyDrafter, ToySource, logits_after

PROMPT = (5, 6, 7, 8)


class TestStreamed(DrafterContract):
    make = staticmethod(lambda: Made(lambda: StreamedDrafter(ToySource(), CONTEXT, Outage("toy"), Window())))


class TestOneThatIsSlowToBegin(DrafterContract):
    make = staticmethod(
        lambda: Made(lambda: StreamedDrafter(ToySource(idle=3), CONTEXT, Outage("toy"), Window()))
    )


def sampler(kind: type[Sampler] = Sampler, **params: object) -> Sampler:
    return kind(SamplingParams(**{"temperature": 0.0, **params}), noise_key(1), prompt_length=len(PROMPT))


def streamed(source: ToySource | None = None, **sampling: object) -> tuple[StreamedDrafter, ToySource]:
    source = source or ToySource()
    drafter = StreamedDrafter(source, CONTEXT)
    drafter.begin(PROMPT, sampler(**sampling))
    return drafter, source


SAMPLINGS = (
    {},
    {"temperature": 0.8},
    {"temperature": 1.3, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.7, "top_k": 5},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"temperature": 0.8, "presence_penalty": 0.9},
)


def play(drafter: Drafter, sampling: dict, kind: type[Sampler]) -> list:
    """What it proposes over some rounds: all right and a bonus token, a wrong one, and news that nobody proposed."""
    drafter.begin(PROMPT, sampler(kind, **sampling))
    seen = []
    for accepted, is_right in ((4, True), (2, False), (0, False), (4, True), (4, False)):
        block = pull(drafter, 4)
        seen.append(block)
        tokens = ids(block[:accepted])
        following = pull(drafter, accepted + 1)[accepted].id
        drafter.commit([*tokens, following if is_right else other_than(following)])
    return seen


@pytest.mark.parametrize("kind", [Sampler, SparseSampler])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_drafts_are_those_of_a_model_with_these_logits(sampling, kind):
    wanted = play(ToyDrafter(), sampling, kind)
    got = play(StreamedDrafter(ToySource(), CONTEXT), sampling, kind)
    for mine, theirs in zip(got, wanted, strict=True):
        assert ids(mine) == ids(theirs)
        assert [token.confidence for token in mine] == pytest.approx(
            [token.confidence for token in theirs],
            rel=5e-3,  # penalties of others count, too
        )
        for one, other in zip(mine, theirs, strict=True):
            assert (one.drawn_from is None) == (other.drawn_from is None)
            if one.drawn_from and other.drawn_from:
                # The last candidates are others where a penalty took one from among them
                assert one.drawn_from.ids[:60] == other.drawn_from.ids[:60]
                assert one.drawn_from.probs[:60] == pytest.approx(other.drawn_from.probs[:60], rel=5e-3)


def test_a_bias_moves_the_draft():
    drafter, source = streamed()
    first, second = (int(id) for id in logits_after(PROMPT).argsort()[::-1][:2])
    drafter.begin(PROMPT, sampler(logit_bias=((second, 50.0),)))
    assert ids(pull(drafter, 1)) == [second] != [first]
    # The stream went on with the other one
    assert source.asked[-1][1] == DRAFT_CANDIDATES and source.open == 0


def test_only_the_candidates_that_are_needed_are_asked_for():
    for with_confidence, sampling, wanted in (
        (False, {}, 0),
        (True, {}, 1),
        (False, {"temperature": 0.5}, DRAFT_CANDIDATES),
        (False, {"presence_penalty": 1.0}, DRAFT_CANDIDATES),
    ):
        source = ToySource()
        drafter = StreamedDrafter(source, CONTEXT)
        draw = Sampler(SamplingParams(**{"temperature": 0.0, **sampling}), b"", with_confidence)
        drafter.begin(PROMPT, draw)
        pull(drafter, 2)
        assert [candidates for _, candidates in source.asked] == [wanted] * len(source.asked)


def test_a_source_without_candidates_is_taken_at_its_word():
    class Plain(ToySource):
        def stream(self, ids, candidates):
            return super().stream(ids, 0)

    plain, _ = streamed(Plain(), temperature=0.8)
    greedy, _ = streamed()
    assert ids(pull(plain, 8)) == ids(pull(greedy, 8))


def test_a_stream_stays_open_while_the_truth_agrees():
    drafter, source = streamed()
    for _ in range(3):
        block = ids(pull(drafter, 4))
        drafter.commit([*block, int(logits_after([*drafter.sequence[: drafter._base], *block]).argmax())])
    assert drafter.streams == 1 and source.open == 1 and len(source.asked) == 1


def test_another_truth_cuts_the_stream_at_once_and_the_next_one_begins_behind_it():
    drafter, source = streamed()
    block = ids(pull(drafter, 6))
    drafter.commit([*block[:2], other_than(block[2])])
    assert source.open == 0
    pull(drafter, 1)
    assert source.asked[-1][0] == [*PROMPT, *block[:2], other_than(block[2])]
    assert drafter.streams == 2 and source.open == 1


def test_a_stream_that_is_far_behind_is_given_up():
    """Another drafter of the chain wrote much: to read it in one pass is cheaper than to write it."""
    drafter, source = streamed()
    text = [*PROMPT, *ids(pull(drafter, 1))]
    for _ in range(LAG + 3):
        text.append(int(logits_after(text).argmax()))
    drafter.commit(text[len(PROMPT) :])
    assert len(drafter.drafted) == 0 and source.open == 1
    pull(drafter, 1)
    assert source.asked[-1][0] == text and drafter.streams == 2


def test_a_draw_that_is_another_token_cuts_the_stream():
    drafter, _ = streamed(temperature=1.5)
    block = pull(drafter, 12)
    other = 0
    for place, token in enumerate(block):
        other += token.id != logits_after([*PROMPT, *ids(block[:place])]).argmax()
    assert other > 3 and drafter.streams in (other, other + 1)


def test_look_ahead_drafts_behind_the_block_and_the_bonus_token():
    drafter, source = streamed()
    assert sum(1 for _ in drafter.look_ahead(pull(drafter, 3), 4)) == 1 + 4
    ahead = ids(drafter.drafted)
    drafter.commit(ahead[:4])
    given = source.given
    assert drafter.ready == 4 and ids(pull(drafter, 4)) == ahead[4:8] and source.given == given


def test_a_stream_that_ends_is_followed_by_another_one():
    drafter, _ = streamed(ToySource(most=3))
    greedy, _ = streamed()
    assert ids(pull(drafter, 10)) == ids(pull(greedy, 10)) and drafter.streams == 4


def test_a_source_that_has_nothing_to_say_is_asked_once_for_each_block():
    drafter, source = streamed(ToySource(most=0))
    assert pull(drafter) == [] and len(source.asked) == 1
    assert pull(drafter) == [] and len(source.asked) == 2


def test_nothing_is_asked_beyond_the_context():
    source = ToySource(most=CONTEXT)
    drafter = StreamedDrafter(source, CONTEXT)
    drafter.begin([1] * (CONTEXT - 2), sampler())
    assert len(pull(drafter, 9)) == 2
    drafter.begin([1] * (CONTEXT * 3), sampler())
    pull(drafter, 1)
    assert len(source.asked[-1][0]) < CONTEXT


def test_nobody_waits_while_the_source_reads_a_long_text():
    drafter, _ = streamed(ToySource(idle=5))
    assert not drafter.behind and not drafter.read(16)  # a short one is read at once
    drafter.begin([*range(NEAR + 10)], sampler())
    assert drafter.behind and drafter.lags
    reads = 0
    while drafter.read(16):
        reads += 1
    assert reads == 6 and drafter.ready == 1 and drafter.streams == 1
    drafter.commit([*ids(drafter.drafted), 3])
    assert not drafter.behind


def test_a_silent_source_is_no_endless_read():
    drafter, _ = streamed(ToySource(most=0))
    drafter.begin([*range(NEAR + 10)], sampler())
    assert len(list(islice(iter(lambda: drafter.read(16), False), 5))) == 1


@pytest.fixture
def outage(caplog):
    caplog.set_level(logging.WARNING, "edge_client.drafters.outage")
    clock = Clock()
    return Outage("the toy", clock), clock, caplog


def test_an_outage_costs_drafts_and_is_told_once(outage):
    state, clock, caplog = outage
    source = ToySource()
    source.error, source.sound = DraftSourceError("it is switched off"), 2
    drafter = StreamedDrafter(source, CONTEXT, state)
    drafter.begin(PROMPT, sampler())
    assert len(pull(drafter)) == 2  # what it said before it failed stands
    asked = len(source.asked)
    assert len(pull(drafter)) == 2 and len(source.asked) == asked  # not before the pause is over
    source.sound = 0
    pauses = []
    for _ in range(8):
        before = clock.now
        while not state.is_over:
            clock.now += 0.5
        pauses.append(clock.now - before)
        assert len(pull(drafter)) == 2
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE] and pauses[-1] == LONGEST_PAUSE
    assert len(caplog.records) == 1 and "the toy gives no drafts: it is switched off" in caplog.text
    source.error, clock.now = None, clock.now + LONGEST_PAUSE
    assert len(pull(drafter)) == 6
    assert len(caplog.records) == 2 and "the toy drafts again" in caplog.text


def test_the_pace_of_a_source_is_told(outage):
    state, _, _ = outage
    assert state.words == ""
    for _ in range(100):
        state.waited(1, 0.125)
    assert state.words == "the toy writes 8.0 tokens/s"
    state.failed(DraftSourceError("gone"))
    assert state.words == "the toy gives no drafts: gone"


def test_an_outage_is_known_to_all_drafters_of_a_source(outage):
    state, clock, _ = outage
    sources = ToySource(), ToySource()
    first, second = (StreamedDrafter(source, CONTEXT, state) for source in sources)
    for drafter in (first, second):
        drafter.begin(PROMPT, sampler())
    sources[0].error = DraftSourceError("gone")
    assert pull(first) == pull(second) == [] and not sources[1].asked
    clock.now += FIRST_PAUSE
    assert len(pull(second)) == 6


def test_it_ends_its_stream_and_its_source():
    drafter, source = streamed()
    proposals = drafter.propose()
    next(proposals)
    drafter.close()
    assert source.open == 0 and source.closed and next(proposals, None) is None
    drafter.close()


def test_candidates_that_the_target_does_not_know_are_not_drawn():
    class Padded(ToySource):
        def stream(self, ids, candidates):
            yield Scored(9, (9, 4, 3), (-0.1, -3.0, -4.0))

    drafter = StreamedDrafter(Padded(), CONTEXT)
    drafter.begin(PROMPT, Sampler(SamplingParams(temperature=0.0), b"", vocab_size=5))
    assert ids(pull(drafter, 1)) == [4]
