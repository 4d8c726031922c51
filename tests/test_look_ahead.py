"""Look-ahead: what a drafter does while a verdict travels, and what becomes of it."""

import asyncio
import threading
from contextlib import ExitStack, aclosing, closing
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.round import drafting
from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import _cut, generate
from opensled.core.messages import DraftBlock, DraftToken, SamplingParams, Verdict
from opensled.core.protocol import Truth
from opensled.core.sampling import Sampler
from opensled.core.turns import Turn
from tests.edge_scripts import PROMPT, Script, Watched
from tests.fakes import POISON, OracleDrafter, continuation, next_token
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


async def worked_ahead(begun, drafter, drafts=7):
    """A thread that sends its first block and works on until so many proposals are at hand; and the truth."""
    thread, truth = begun(drafter), Truth(PROMPT)
    block = (await thread.draft(truth, BlockBudget(8))).block
    if isinstance(drafter, Held):
        drafter.gate.release()
    thread.look_ahead(block, BlockBudget(8))
    await until(lambda: len(drafter.drafted) == drafts)
    return thread, truth


async def read_to_end(script, thread, params=GREEDY):
    """The commits of a sequence to its end."""
    async with aclosing(generate(script, thread, params)) as commits:
        seen = [commit async for commit in commits]
    thread.close()
    return seen


async def test_a_won_bet_is_the_next_block_without_a_pass_of_the_model(begun):
    drafter = Model()
    # The block, the guess of the bonus token, and three more
    thread, truth = await worked_ahead(begun, drafter, 7)
    passes = len(drafter.passes)
    truth.extend(Verdict(3, tuple(continuation(PROMPT, 4))))
    ahead = (await thread.draft(truth, BlockBudget(8))).block
    assert ahead.ids == tuple(continuation(PROMPT, 7)[4:]) and len(drafter.passes) == passes == 7
    assert thread.wasted == 0


@pytest.mark.parametrize(("verdict", "wasted"), [(2, 4), (3, 4)])
async def test_a_lost_bet_is_drafted_anew_and_counted(verdict, wasted, begun):
    """Rejected within the block, or at the guess of the bonus token."""
    drafter = Model(errs={3 + verdict})
    thread, truth = await worked_ahead(begun, drafter)
    drafter.errs.clear()
    truth.extend(Verdict(3, tuple(continuation(PROMPT, verdict + 1))))
    again = (await thread.draft(truth, BlockBudget(8))).block
    assert again.ids == tuple(continuation(PROMPT, verdict + 4)[verdict + 1 :])
    assert thread.wasted == wasted


async def test_work_ahead_ends_between_two_tokens(begun):
    drafter = Held(3)
    thread, truth = await worked_ahead(begun, drafter, 4)  # and the pass after it is held
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
    await read_to_end(script, DraftThread(drafter, FixedLength(3)))
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
    thread.look_ahead(first.block, BlockBudget(8))
    await until(lambda: len(drafter.drafted) == 7)
    truth.extend(Verdict(3, tuple(continuation(PROMPT, 4))))
    assert (first.seconds, (await thread.draft(truth, BlockBudget(8))).seconds) == (0.75, 0.75)


async def test_work_ahead_ends_when_the_server_goes_elsewhere_on_its_own(begun):
    drafter = Held(3)
    thread, truth = await worked_ahead(begun, drafter, 4)
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
    assert sum(len(commit.tokens) for commit in await read_to_end(script, thread, params)) == 4
    assert len(drafter.passes) <= 3 and thread.wasted == 0


async def test_work_ahead_of_the_last_block_is_wasted(begun):
    thread, _ = await worked_ahead(begun, Model())
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
    assert len(await read_to_end(script, DraftThread(drafter, FixedLength(3)))) == 4
    assert [draft.block.base for draft in script.drafts] == [5]


# -- the loop of a device -----------------------------------------------------------------------------------------


LONG = SamplingParams(temperature=0, max_tokens=150)


async def commits_of(verdicts, drafter, hint=None):
    thread = Watched(drafter, FixedLength(2))
    script = Script(verdicts, hint, thread)
    seen = await read_to_end(script, thread, SamplingParams(temperature=0, max_tokens=9))
    assert script.closed
    return script, seen


async def test_a_hint_of_zero_silences_the_drafter_until_another_hint():
    verdicts = [
        Verdict(3, (5,), 0, 1, hint=0),
        Verdict(4, (6,), hint=0),
        Verdict(5, (7,), hint=4),
        Verdict(6, (8,), finish_reason="eos"),
    ]
    script, _ = await commits_of(verdicts, OracleDrafter(1.0))
    assert [draft.block.base for draft in script.drafts] == [3, 6]


async def test_a_hint_of_zero_at_the_opening_holds_until_another_one():
    verdicts = [Verdict(3, (5,)), Verdict(4, (6,), hint=1), Verdict(5, (7,), 0, 1, finish_reason="eos")]
    drafter = OracleDrafter(1.0)
    drafter.propose = Mock(side_effect=drafter.propose)
    script, _ = await commits_of(verdicts, drafter, hint=0)
    assert drafter.propose.call_count == 1
    assert [(draft.block.base, len(draft.block.tokens)) for draft in script.drafts] == [(5, 1)]


async def test_a_device_without_drafts_says_so_once_each_time_the_server_waits_for_one():
    hints = [3, 0, 0, 2, 2, None, 0, 1]
    verdicts = [Verdict(3 + at, (5,), hint=hint) for at, hint in enumerate(hints)]
    script, _ = await commits_of([*verdicts, Verdict(11, (5,), finish_reason="eos")], NoneDrafter())
    assert [draft.block for draft in script.drafts] == [DraftBlock(7), DraftBlock(11)]


@pytest.mark.parametrize(("hint", "sent"), [(0, []), (1, [1]), (2, [2]), (None, [2])])
async def test_a_hint_that_comes_while_a_block_is_drafted_cuts_it(hint, sent):
    class Held(OracleDrafter):
        def propose(self):
            begun.set()
            for token in super().propose():
                assert heard.wait(60)
                yield token

    class Hearing(Script):
        async def next_verdict(self):
            if self.truth.generated:  # the first verdict was heard
                heard.set()
                await until(lambda: self.drafts or not sent)
            await until(begun.is_set)
            return await super().next_verdict()

    begun, heard = threading.Event(), threading.Event()
    first = tuple(continuation(PROMPT, 1))
    script = Hearing([Verdict(3, first, hint=hint), Verdict(4, (6,), finish_reason="eos")])
    seen = await read_to_end(script, DraftThread(Held(1.0), FixedLength(2)), LONG)
    assert [commit.tokens for commit in seen] == [first, (6,)]
    assert [len(draft.block.tokens) for draft in script.drafts] == sent


def test_a_block_that_was_cut_took_its_share_of_the_time():
    drafted = Drafted(DraftBlock(3, (DraftToken(1), DraftToken(2), DraftToken(3), DraftToken(4))), 0.8)
    assert _cut(drafted, Turn(1)) == Drafted(DraftBlock(3, (DraftToken(1),)), 0.2)
    assert _cut(drafted, Turn(0)) == Drafted(DraftBlock(3), 0.0)
    assert all(_cut(drafted, Turn(hint)) is drafted for hint in (None, 4, 9))


async def test_the_time_of_a_draft_is_that_of_its_tokens_alone(monkeypatch):
    """Neither the prompt, nor the truth since the last block, nor the wait for the thread."""

    class Timed(OracleDrafter):
        def begin(self, prompt, sampler):
            clock[0] += 100
            super().begin(prompt, sampler)

        def commit(self, tokens):
            clock[0] += 10
            super().commit(tokens)

        def propose(self):
            for token in super().propose():
                clock[0] += 0.25
                yield token

    clock = [0.0]
    monkeypatch.setattr(drafting, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    thread, truth = Watched(Timed(1.0), FixedLength(2)), Truth(PROMPT)
    script = Script([Verdict(3, (5,), 0, 1), Verdict(4, (6,), 0, 2, finish_reason="eos")], thread=thread)
    thread.begin(truth, Sampler(LONG, b"k" * 16))
    first = await thread.draft(truth, BlockBudget(8))
    truth.extend(Verdict(3, (5,)))
    assert (first.seconds, (await thread.draft(truth, BlockBudget(8, hint=1))).seconds) == (0.5, 0.25)
    assert [commit.drafted for commit in await read_to_end(script, thread, LONG)] == [2, 2]
    assert [draft.seconds for draft in script.drafts] == [0.5, 0.5]


async def test_a_token_known_before_the_answer_does_not_count_as_accepted():
    right = continuation(PROMPT, 3)
    verdicts = [Verdict(3, (right[0],)), Verdict(3, tuple(right), 2, 1, "length")]
    _, seen = await commits_of(verdicts, OracleDrafter(1.0))
    assert [(c.tokens, c.drafted, c.accepted) for c in seen] == [
        ((right[0],), 0, 0),
        (tuple(right[1:]), 2, 1),
    ]


async def test_ids_the_target_does_not_know_end_a_block():
    class Foreign(OracleDrafter):
        def propose(self):
            yield from (DraftToken(7), DraftToken(50), DraftToken(8))

    thread = DraftThread(Foreign(1.0), FixedLength(8), vocab_size=50)
    thread.begin(Truth(PROMPT), Sampler(LONG, b"k" * 16))
    assert (await thread.draft(Truth(PROMPT), BlockBudget(8))).block.ids == (7,)
    thread.close()


async def test_an_interrupted_block_does_not_hold_up_the_next_sequence():
    class Slow(OracleDrafter):
        def propose(self):
            for token in super().propose():
                time_spent.append(1)
                yield token

    time_spent: list[int] = []
    thread = DraftThread(Slow(1.0), FixedLength(20_000))
    thread.begin(Truth(PROMPT), Sampler(LONG, b"k" * 16))
    old = thread.draft(Truth(PROMPT), BlockBudget(1_000_000))
    await until(lambda: time_spent)
    thread.interrupt()
    thread.begin(Truth((9,)), Sampler(LONG, b"k" * 16))
    block = (await thread.draft(Truth((9,)), BlockBudget(3))).block
    assert block.ids == tuple(continuation((9,), 3)) and len((await old).block.tokens) < 20_000
    thread.close()


async def test_a_drafter_that_cannot_say_what_is_ready_fails_like_any_other(caplog):
    class Broken(OracleDrafter):
        @property
        def ready(self):
            raise RuntimeError("no idea")

        def look_ahead(self, block, length):
            return iter(())

    verdicts = [Verdict(3, (5,)), Verdict(4, (6,), finish_reason="eos")]
    script, seen = await commits_of(verdicts, Broken(1.0))
    assert [commit.tokens for commit in seen] == [(5,), (6,)] and not script.drafts
    assert "goes on without drafts" in caplog.text


async def test_nothing_is_heard_after_the_last_verdict():
    """A session that was asked once more would be opened again."""

    class Counted(Script):
        asked = 0

        async def next_verdict(self):
            self.asked += 1
            return await super().next_verdict()

    script = Counted([Verdict(3, (5,)), Verdict(4, (6,), finish_reason="eos")])
    assert len(await read_to_end(script, DraftThread(NoneDrafter(), FixedLength(2)), LONG)) == 2
    await asyncio.sleep(0.02)
    assert script.asked == 2
