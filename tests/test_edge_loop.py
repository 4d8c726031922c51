"""The edge loop and its drafter thread, against a verifier that says what the test wants."""

import asyncio
import threading
from contextlib import aclosing
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
from tests.fakes import OracleDrafter, continuation
from tests.system import until

LONG = SamplingParams(temperature=0, max_tokens=150)


async def commits_of(verdicts, drafter, hint=None):
    thread = Watched(drafter, FixedLength(2))
    script = Script(verdicts, hint, thread)
    async with aclosing(generate(script, thread, SamplingParams(temperature=0, max_tokens=9))) as commits:
        seen = [commit async for commit in commits]
    thread.close()
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
    thread = DraftThread(Held(1.0), FixedLength(2))
    async with aclosing(generate(script, thread, LONG)) as commits:
        assert [commit.tokens async for commit in commits] == [first, (6,)]
    thread.close()
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
    async with aclosing(generate(script, thread, LONG)) as commits:
        assert [commit.drafted async for commit in commits] == [2, 2]
    assert [draft.seconds for draft in script.drafts] == [0.5, 0.5]
    thread.close()


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
    thread = DraftThread(NoneDrafter(), FixedLength(2))
    async with aclosing(generate(script, thread, LONG)) as commits:
        assert len([commit async for commit in commits]) == 2
    await asyncio.sleep(0.02)
    assert script.asked == 2
    thread.close()
