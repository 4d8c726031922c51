"""How a device reads a long text before it drafts: in pieces, beside a server that goes on, and not all of it."""

from contextlib import aclosing

import numpy as np
import pytest

from edge_client.drafters.base import NEAR, ModelDrafter
from edge_client.drafters.chain import ChainDrafter
from edge_client.drafters.window import ENOUGH, LEAST, READING_S, Window, select_text
from edge_client.lengths.fixed import FixedLength
from edge_client.round.draft_job import BlockBudget, DraftJob
from edge_client.round.generate import generate
from opensled.core.messages import DraftBlock, SamplingParams, Verdict
from opensled.core.sampling import Sampler
from tests.edge_scripts import Script, Watched
from tests.tiny_drafts import Speaker

GREEDY = Sampler(SamplingParams(temperature=0), bytes(16))
PROMPT = list(range(100, 200))
LIKELY = 7  # what the model always drafts
ROOM = BlockBudget(9)


class Reader(ModelDrafter):
    """A model that remembers how long each of its passes was, and always drafts the same."""

    def __init__(self, context_length: int = 1000) -> None:
        super().__init__(context_length)
        self.passes: list[int] = []

    def forward(self, tokens, start):
        self.passes.append(len(tokens))
        return np.eye(10)[LIKELY]

    def truncate(self, length):
        return length


def job_of(drafter, truth) -> DraftJob:
    job = DraftJob(drafter, FixedLength(3), len(truth))
    job.begin(truth, GREEDY)
    return job


def done(work, at_pass=lambda count: None):
    """The result of work whose passes take 10 ms each; `at_pass` is called after each."""
    try:
        next(work)
        for count in range(1000):
            at_pass(count)
            work.send(count / 100)
    except StopIteration as end:
        return end.value
    raise AssertionError("it never ends")


def test_a_long_prompt_is_read_in_pieces_that_a_short_one_is_not():
    long, short = Reader(), Reader()
    assert len(done(job_of(long, PROMPT).draft(PROMPT, ROOM)).block.tokens) == 3
    done(job_of(short, PROMPT[:NEAR]).draft(PROMPT[:NEAR], ROOM))
    assert long.passes[0] == 16 and max(long.passes) < len(PROMPT)
    assert sum(long.passes) == len(PROMPT) + 2
    assert short.passes == [NEAR, 1, 1]


def test_what_the_server_writes_meanwhile_moves_the_block():
    """Else the first block always came too late, and the server waited for the second."""
    drafter, truth = Reader(), list(PROMPT)
    job = job_of(drafter, truth)

    def at_pass(count: int) -> None:
        if count in (1, 2):
            truth.append(50 + count)
            job.hear(truth)

    block, _, _ = done(job.draft(truth, ROOM), at_pass)
    assert (block.base, len(block.tokens)) == (len(PROMPT) + 2, 3)
    assert drafter.sequence == [*truth, LIKELY, LIKELY, LIKELY]


def test_its_seconds_are_those_of_drafting_alone():
    """A server that took the reading for drafting told the device to rest."""
    whole = []
    seconds = done(job_of(Reader(), PROMPT).draft(PROMPT, ROOM), whole.append).seconds
    assert seconds == pytest.approx(0.04) and len(whole) > 7  # passes of 10 ms


def test_a_server_that_waits_is_not_kept_waiting():
    drafter = Reader()
    drafted = done(job_of(drafter, PROMPT).draft(PROMPT, ROOM._replace(awaited=True)))
    assert (drafted.block, drafted.reads_on, drafter.passes) == (DraftBlock(len(PROMPT)), True, [])


async def test_it_gives_the_drive_back_and_reads_on():
    """The hint ends a rest, so the server waits; the device has not read the prompt."""

    thread = Watched(Reader(), FixedLength(2))
    script = Script([], hint=0, thread=thread)
    script.truth.extend(Verdict(len(script.truth), tuple(PROMPT[:60])))
    base = len(script.truth)
    script.verdicts = iter(
        [Verdict(base, (LIKELY,), hint=2), Verdict(base + 1, (LIKELY,), finish_reason="eos")]
    )

    async with aclosing(generate(script, thread, SamplingParams(temperature=0, max_tokens=90))) as commits:
        async for _ in commits:
            pass
    thread.close()
    empty, drafted = script.drafts[:2]
    assert empty.block == DraftBlock(base + 1)
    assert (drafted.block.base, len(drafted.block.tokens)) == (base + 1, 2)


class TestChain:
    SURE, UNSURE = 0.9, 0.3

    def chain(self, confidence: float) -> tuple[ChainDrafter, Reader]:
        model = Reader()
        return ChainDrafter([Speaker(range(6), confidence), model]), model

    def test_tables_draft_while_the_model_reads(self):
        chain, model = self.chain(self.SURE)
        block = done(job_of(chain, PROMPT).draft(PROMPT, ROOM._replace(awaited=True))).block
        assert [token.id for token in block.tokens] == [0, 1, 2] and not model.passes

    def test_it_reads_while_a_verdict_travels_and_stops_when_it_comes(self):
        chain, model = self.chain(self.SURE)
        job, truth = job_of(chain, PROMPT), list(PROMPT)
        block = done(job.draft(truth, ROOM)).block

        def at_pass(count: int) -> None:
            if count == 2:
                truth.append(99)  # another token than the block's
                job.hear(truth)

        done(job.look_ahead(block, ROOM), at_pass)
        assert model.passes == [16, 80]  # the second piece is fitted to the speed of the first

    def test_where_tables_are_not_sure_the_server_goes_on(self):
        chain, model = self.chain(self.UNSURE)
        job = job_of(chain, PROMPT)
        assert done(job.draft(PROMPT, ROOM._replace(awaited=True))).reads_on
        block = done(job.draft(PROMPT, ROOM)).block
        assert [token.id for token in block.tokens] == [LIKELY] * 3 and model.passes


class TestWindow:
    TEXT = tuple(range(1000))

    def test_the_beginning_and_the_end_are_seen(self):
        left_out, seen = select_text(self.TEXT, [], 0, 100, 500)
        assert (left_out, seen) == (900, [*range(25), *range(925, 1000)])
        left_out, seen = select_text(self.TEXT, [], 0, 500, 500)
        assert (left_out, len(seen)) == (750, 250), "of a text beyond the context half a context"
        for length in (10, 100):
            assert select_text(self.TEXT[:length], [], 0, 100, 500) == (0, list(self.TEXT[:length]))
        # Another text does not inherit what was left out
        assert select_text(list(range(5000, 5950)), self.TEXT[:25], 900, 100, 500)[0] == 850

    def test_the_next_turn_of_a_conversation_goes_on(self):
        left_out, seen = select_text(self.TEXT, [], 0, 100, 500)
        longer = [*self.TEXT, *range(2000, 2050)]
        again, more = select_text(longer, [*seen, 2000], left_out, 100, 500)
        assert again == left_out and more == [*seen, *longer[1000:]]

    def test_noise_is_that_of_the_place_in_the_whole_text(self):
        """Else shared noise would not agree, and at a temperature hardly a draft token would be right."""
        noisy = Sampler(SamplingParams(temperature=1.0), bytes(16))
        drafter = Reader()
        drafter.window = Window(40)
        drafter.begin(PROMPT, noisy)
        drawn = [token.id for token, _ in zip(drafter.propose(), range(20))]
        assert drafter.computed <= 60
        assert drawn == [noisy.draw(np.eye(10)[LIKELY], len(PROMPT) + at).id for at in range(20)]

    def test_by_default_it_is_what_is_soon_read(self):
        window = Window(0)
        assert window.wants_speed and window.most(8192) == 8192
        window.took(ENOUGH, ENOUGH / 400)
        assert window.most(8192) == int(400 * READING_S)
        window.took(10_000, 10_000 / 10)
        assert window.most(8192) == LEAST

    def test_a_drafter_times_a_pass_before_its_first_text(self):
        drafter, window = Reader(), Window(0)
        drafter.prepare(window)
        assert drafter.passes == [1, ENOUGH] and not window.wants_speed
        drafter.prepare(window)
        assert len(drafter.passes) == 2
