"""The edge loop and its drafter thread, against a verifier that says what the test wants."""

import asyncio
from contextlib import aclosing

from edge_client.drafting import DraftThread
from edge_client.generate import generate
from edge_client.stop import StopRule
from opensled.messages import MATCH, Draft, DraftToken, Limits, SamplingParams, Verdict
from opensled.protocol import Truth
from opensled.sampling import Sampler
from tests.fakes import OracleDrafter, continuation
from tests.system import until

LONG = SamplingParams(temperature=0, max_tokens=150)
PROMPT = (3, 1, 4)


class Script:
    """A verifier that says what the test wants."""

    def __init__(self, verdicts):
        self.truth, self.noise_key, self.limits = Truth(PROMPT), b"k" * 16, Limits(8, 100)
        self.rule = MATCH
        self.verdicts = iter(verdicts)
        self.drafts: list[Draft] = []
        self.closed = False

    async def submit(self, draft):
        self.drafts.append(draft)

    async def next_verdict(self):
        await asyncio.sleep(0.01)
        return next(self.verdicts)

    async def close(self):
        self.closed = True


async def commits_of(verdicts, drafter):
    script, thread = Script(verdicts), DraftThread(drafter, StopRule(2))
    async with aclosing(generate(script, thread, SamplingParams(temperature=0, max_tokens=9))) as commits:
        seen = [commit async for commit in commits]
    thread.close()
    assert script.closed
    return script, seen


def test_a_hint_of_zero_silences_the_drafter_until_another_hint():
    async def scenario():
        verdicts = [
            Verdict(3, (5,), 0, 1, hint=0),
            Verdict(4, (6,), hint=0),
            Verdict(5, (7,), hint=4),
            Verdict(6, (8,), finish_reason="eos"),
        ]
        script, _ = await commits_of(verdicts, OracleDrafter(1.0))
        assert [draft.block.base for draft in script.drafts] == [3, 6]

    asyncio.run(scenario())


def test_a_token_known_before_the_answer_does_not_count_as_accepted():
    async def scenario():
        right = continuation(PROMPT, 3)
        verdicts = [Verdict(3, (right[0],)), Verdict(3, tuple(right), 2, 1, "length")]
        _, seen = await commits_of(verdicts, OracleDrafter(1.0))
        assert [(c.tokens, c.drafted, c.accepted) for c in seen] == [
            ((right[0],), 0, 0),
            (tuple(right[1:]), 2, 1),
        ]

    asyncio.run(scenario())


def test_ids_the_target_does_not_know_end_a_block():
    class Foreign(OracleDrafter):
        def propose(self):
            yield from (DraftToken(7), DraftToken(50), DraftToken(8))

    async def scenario():
        thread = DraftThread(Foreign(1.0), StopRule(8), vocab_size=50)
        thread.begin(Truth(PROMPT), Sampler(LONG, b"k" * 16))
        assert (await thread.draft(Truth(PROMPT), 8)).ids == (7,)
        thread.close()

    asyncio.run(scenario())


def test_an_interrupted_block_does_not_hold_up_the_next_sequence():
    class Slow(OracleDrafter):
        def propose(self):
            for token in super().propose():
                time_spent.append(1)
                yield token

    time_spent: list[int] = []

    async def scenario():
        thread = DraftThread(Slow(1.0), StopRule(20_000))
        thread.begin(Truth(PROMPT), Sampler(LONG, b"k" * 16))
        old = thread.draft(Truth(PROMPT), 1_000_000)
        await until(lambda: time_spent)
        thread.interrupt()
        thread.begin(Truth((9,)), Sampler(LONG, b"k" * 16))
        block = await thread.draft(Truth((9,)), 3)
        assert block.ids == tuple(continuation((9,), 3)) and len((await old).tokens) < 20_000
        thread.close()

    asyncio.run(scenario())
