"""Look-ahead: what a drafter does while a verdict travels, and what becomes of it."""

import asyncio
import threading
from contextlib import ExitStack, aclosing, closing
from types import SimpleNamespace

import pytest

from edge_client.lengths.fixed import FixedLength
from edge_client.round import drafting
from edge_client.round.draft_job import BlockBudget
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.messages import DraftBlock, DraftToken, SamplingParams, Verdict
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler
from tests.edge_scripts import PROMPT, Script, Watched
from tests.fakes import POISON, continuation, next_token
from tests.system import until
from tests.tiny_drafts import Model

GREEDY = SamplingParams(temperature=0, max_tokens=40)


class Held(Model):
    """Each of its passes takes a permit of the gate."""

    def __init__(self, permits):
        super().__init__()
        self.gate = threading.Semaphore(permits)

    def forward(self, tokens, start):
        self.gate.acquire()
        return super().forward(tokens, start)


@pytest.fixture
def begun():
    """Threads that have begun with the prompt, and are closed afterwards."""
    with ExitStack() as stack:

        def begin(drafter, length=3, **options):
            thread = DraftThread(drafter, FixedLength(length), **options)
            thread.begin(Truth(PROMPT), Sampler(GREEDY, b"k" * 16))
            return stack.enter_context(closing(thread))

        yield begin


async def worked_ahead(thread, block, drafter, drafts):
    """Send `block`, and wait until so many proposals are at hand."""
    thread.look_ahead(block, BlockBudget(8))
    await until(lambda: len(drafter.drafted) == drafts)


async def test_a_won_bet_is_the_next_block_without_a_pass_of_the_model(begun):
    drafter, truth = Model(), Truth(PROMPT)
    thread = begun(drafter)
    block = (await thread.draft(truth, BlockBudget(8))).block
    # The block, the guess of the bonus token, and three more
    await worked_ahead(thread, block, drafter, 7)
    passes = len(drafter.passes)
    truth.extend(Verdict(3, tuple(continuation(PROMPT, 4))))
    ahead = (await thread.draft(truth, BlockBudget(8))).block
    assert ahead.ids == tuple(continuation(PROMPT, 7)[4:]) and len(drafter.passes) == passes == 7
    assert thread.wasted == 0


@pytest.mark.parametrize(("verdict", "wasted"), [(2, 4), (3, 4)])
async def test_a_lost_bet_is_drafted_anew_and_counted(verdict, wasted, begun):
    """Rejected within the block, or at the guess of the bonus token."""
    drafter, truth = Model(errs={3 + verdict}), Truth(PROMPT)
    thread = begun(drafter)
    block = (await thread.draft(truth, BlockBudget(8))).block
    await worked_ahead(thread, block, drafter, 7)
    drafter.errs.clear()
    truth.extend(Verdict(3, tuple(continuation(PROMPT, verdict + 1))))
    again = (await thread.draft(truth, BlockBudget(8))).block
    assert again.ids == tuple(continuation(PROMPT, verdict + 4)[verdict + 1 :])
    assert thread.wasted == wasted


async def test_work_ahead_ends_between_two_tokens(begun):
    drafter, truth = Held(3), Truth(PROMPT)
    thread = begun(drafter)
    block = (await thread.draft(truth, BlockBudget(8))).block
    drafter.gate.release()
    await worked_ahead(thread, block, drafter, 4)  # and the pass after it is held
    truth.extend(Verdict(3, (5, 6)))
    again = thread.draft(truth, BlockBudget(8))
    for _ in range(4):
        drafter.gate.release()
    assert (await again).block.base == 5
    assert len(drafter.passes) == 3 + 2 + 3, "the pass under way ends, and no other of the work ahead begins"


async def test_a_device_may_rest_while_the_verdict_travels(begun):
    drafter = Model()
    thread = begun(drafter, looks_ahead=False)
    block = (await thread.draft(Truth(PROMPT), BlockBudget(8))).block
    thread.look_ahead(block, BlockBudget(8))
    await thread.draft(Truth(PROMPT), BlockBudget(8))
    assert len(drafter.passes) == 3


def test_a_model_goes_on_after_the_block_of_a_drafter_in_front_of_it():
    drafter, right = Model(), continuation(PROMPT, 8)
    drafter.begin(PROMPT, Sampler(GREEDY, b"k" * 16))
    assert len(list(drafter.look_ahead([DraftToken(id, 0.5) for id in right[:3]], 4))) == 5
    assert drafter.passes[0] == (*PROMPT, *right[:3])
    drafter.commit(right[:4])
    assert drafter.ready == 4
    assert [token.id for _, token in zip(range(4), drafter.propose())] == right[4:]
    assert len(drafter.passes) == 5


async def test_a_block_that_the_truth_contradicts_ends_there(begun):
    drafter, truth = Held(1), Truth(PROMPT)
    thread = begun(drafter, 8)
    drafting = thread.draft(truth, BlockBudget(8))
    await until(lambda: drafter.drafted)
    truth.extend(Verdict(3, (5,)))
    thread.hear(truth)
    drafter.gate.release(8)
    assert len((await drafting).block.tokens) <= 2


async def test_a_contradicted_block_is_not_sent_where_the_server_waits_for_one():
    """The server loses patience while the device drafts its second block, and decodes another token."""

    class Held(Model):
        def forward(self, tokens, start):
            if len(self.sequence) == 8:  # of the second block, the second token
                assert heard.wait(60)
            return super().forward(tokens, start)

    heard = threading.Event()
    right = continuation(PROMPT, 4)

    class Hearing(Script):
        async def next_verdict(self):
            if len(self.truth) > 7:
                heard.set()
            await until(lambda: len(self.drafts) == (1 if len(self.truth) <= 7 else 2))
            return await super().next_verdict()

    drafter = Held()
    other = 1 + next_token([*PROMPT, *right]) % (POISON - 1)
    script = Hearing(
        [Verdict(3, tuple(right), 3, 1), Verdict(7, (other,)), Verdict(8, (9, 9), 0, 2, "length")]
    )
    thread = DraftThread(drafter, FixedLength(3))
    async with aclosing(generate(script, thread, GREEDY)) as commits:
        _ = [commit async for commit in commits]
    thread.close()
    assert [(draft.block.base, len(draft.block.tokens)) for draft in script.drafts] == [(3, 3), (8, 3)]


async def test_nothing_is_drafted_ahead_of_a_tree(begun):
    drafter = Model()
    thread = begun(drafter)
    tree = DraftBlock(3, (DraftToken(1), DraftToken(2)), (-1, -1))
    thread.look_ahead(tree, BlockBudget(8))
    await thread.draft(Truth(PROMPT), BlockBudget(8))
    assert len(drafter.passes) == 3


async def test_the_seconds_of_a_block_drafted_ahead_are_those_that_it_took(monkeypatch, begun):
    class Timed(Model):
        def forward(self, tokens, start):
            clock[0] += 0.25
            return super().forward(tokens, start)

    clock = [0.0]
    monkeypatch.setattr(drafting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    drafter, truth = Timed(), Truth(PROMPT)
    thread = begun(drafter)
    first = await thread.draft(truth, BlockBudget(8))
    await worked_ahead(thread, first.block, drafter, 7)
    truth.extend(Verdict(3, tuple(continuation(PROMPT, 4))))
    assert (first.seconds, (await thread.draft(truth, BlockBudget(8))).seconds) == (0.75, 0.75)


async def test_work_ahead_ends_when_the_server_goes_elsewhere_on_its_own(begun):
    drafter, truth = Held(3), Truth(PROMPT)
    thread = begun(drafter)
    block = (await thread.draft(truth, BlockBudget(8))).block
    drafter.gate.release()
    await worked_ahead(thread, block, drafter, 4)
    truth.extend(Verdict(3, (5,)))
    thread.hear(truth)
    drafter.gate.release(9)
    await asyncio.get_running_loop().run_in_executor(thread._thread, len, ())  # behind all of its work
    assert len(drafter.passes) == 5, "the pass under way was the last one"


async def test_nothing_is_drafted_ahead_beyond_the_last_token_and_all_work_is_accounted_for():
    """Four tokens in all: the block, the bonus token, and no room for another block."""
    drafter = Model()
    right = continuation(PROMPT, 4)
    thread = Watched(drafter, FixedLength(2))
    verdicts = [Verdict(3, tuple(right[:1])), Verdict(4, tuple(right[1:]), 2, 1, "length")]
    script = Script(verdicts, thread=thread)
    params = SamplingParams(temperature=0, max_tokens=4)
    async with aclosing(generate(script, thread, params)) as commits:
        assert sum([len(commit.tokens) async for commit in commits]) == 4
    thread.close()
    assert len(drafter.passes) <= 3 and thread.wasted == 0


async def test_work_ahead_of_the_last_block_is_wasted(begun):
    drafter, truth = Model(), Truth(PROMPT)
    thread = begun(drafter)
    block = (await thread.draft(truth, BlockBudget(8))).block
    await worked_ahead(thread, block, drafter, 7)
    thread.interrupt()
    assert thread.wasted == 4


async def test_a_server_to_which_a_resting_sequence_goes_drives_until_it_has_a_draft():
    """So the first draft goes out though the server has gone on meanwhile: it asks for the drive."""

    class Late(Model):
        def forward(self, tokens, start):
            if len(self.passes) == 1:
                assert heard.wait(60)
            return super().forward(tokens, start)

    class Moving(Script):
        async def next_verdict(self):
            if len(self.truth) > 5:
                heard.set()
                await until(lambda: self.drafts)
            if len(self.truth) == 4:
                self.turn.reopen(None)
            if len(self.truth) == 5:  # the first draft is under way
                await until(lambda: drafter.passes)
            return await super().next_verdict()

    heard, drafter = threading.Event(), Late()
    unasked = [Verdict(3, (5,), hint=0), Verdict(4, (6,)), Verdict(5, (7,))]
    script = Moving([*unasked, Verdict(6, (8,), finish_reason="eos")], hint=0)
    thread = DraftThread(drafter, FixedLength(3))
    async with aclosing(generate(script, thread, GREEDY)) as commits:
        assert len([commit async for commit in commits]) == 4
    thread.close()
    assert [draft.block.base for draft in script.drafts] == [5]
