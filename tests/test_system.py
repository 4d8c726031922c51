"""Device and server in one process over a lossy link, on a fake target."""

import asyncio

import pytest

from edge_client.drafters.lookup import LookupDrafter
from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from opensled.core.errors import EngineError, NonFiniteLogits
from opensled.core.messages import Draft, DraftBlock, Failure, Open, SamplingParams
from tests.fakes import IMPATIENT, POISON, FakeEngine, OracleDrafter, Weather, continuation, next_token
from tests.loops import cancelled
from tests.system import FOREVER, ask, running
from verify_server.admission.session_manager import SessionLimits

PROMPT = [3, 1, 4, 1, 5]
EXPECTED = tuple(continuation(PROMPT, 40))
STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)


def drafters():
    return [NoneDrafter(), LookupDrafter(), *(OracleDrafter(a, seed=1) for a in (0.0, 0.5, 1.0))]


@pytest.mark.parametrize("draft_wait", [0.0, 0.01, FOREVER])
@pytest.mark.usefixtures("each_policy")
async def test_the_text_is_the_targets_own_whoever_drafts(draft_wait):
    async with running(FakeEngine(), draft_wait=draft_wait) as network:
        for drafter in drafters():
            answer = await ask(network, PROMPT, drafter)
            assert (answer.tokens, answer.finish_reason) == (EXPECTED, "length")


@pytest.mark.parametrize("length", range(9))
async def test_every_draft_length(length):
    async with running(FakeEngine()) as network:
        answer = await ask(network, PROMPT, OracleDrafter(0.8), stop=FixedLength(length))
        assert answer.tokens == EXPECTED
        assert max((commit.drafted for commit in answer.commits), default=0) <= length


async def test_tokens_per_round_are_not_wasted():
    """Text equality alone would hide a dropped bonus token: every settled round commits accepted + 1."""
    async with running(FakeEngine()) as network:
        answer = await ask(network, PROMPT, OracleDrafter(0.7, seed=3))
        settled = [round for round in answer.rounds if round.tokens][2:-1]
        assert settled and all(len(round.tokens) == round.accepted + 1 for round in settled)
        perfect = await ask(network, PROMPT, OracleDrafter(1.0))
        assert [len(round.tokens) for round in perfect.rounds[3:-1]] == [5] * len(perfect.rounds[3:-1])


@pytest.mark.usefixtures("each_policy")
async def test_an_edge_that_never_drafts_sends_nothing_but_open():
    async with running(FakeEngine()) as network:
        await ask(network, PROMPT, NoneDrafter())
        assert [type(message).__name__ for message in network.uplinked] == ["Open"]


@pytest.mark.parametrize("sessions", [1, 4, 16])
@pytest.mark.usefixtures("each_policy")
async def test_a_storm_on_every_link_changes_nothing(sessions):
    engine = FakeEngine(num_blocks=400)
    async with running(engine, draft_wait=0.02, weather=STORM) as network:
        asked = [
            ask(network, [id, 2, 3], OracleDrafter(0.7, id), patience=IMPATIENT)
            for id in range(1, sessions + 1)
        ]
        answers = await asyncio.gather(*asked)
        for id, answer in enumerate(answers, 1):
            assert answer.tokens == tuple(continuation([id, 2, 3], 40))
        assert sum(answer.reopened for answer in answers) > 0


@pytest.mark.usefixtures("each_policy")
async def test_sixteen_sessions_share_steps():
    engine = FakeEngine(num_blocks=400)
    async with running(engine, max_step_tokens=200) as network:
        asked = [ask(network, [id, 2, 3], OracleDrafter(0.7, id)) for id in range(1, 17)]
        await asyncio.gather(*asked)
        assert max(engine.batches) > 8


@pytest.mark.usefixtures("each_policy")
async def test_too_little_kv_memory_costs_time_and_never_text():
    engine = FakeEngine(num_blocks=17)  # 68 tokens: one session of 59, six want in
    async with running(engine, limits=SessionLimits(max_draft=8, linger=0.1)) as network:
        asked = [ask(network, [id, 2, 3], OracleDrafter(0.7, id)) for id in range(1, 7)]
        for id, answer in enumerate(await asyncio.gather(*asked), 1):
            assert answer.tokens == tuple(continuation([id, 2, 3], 40))


@pytest.mark.usefixtures("each_policy")
async def test_a_long_prompt_is_read_in_chunks_while_others_go_on():
    engine = FakeEngine(num_blocks=200)
    async with running(engine, max_step_tokens=16) as network:
        prompt = [1 + i % 40 for i in range(120)]
        params = SamplingParams(temperature=0, max_tokens=10)
        long, short = await asyncio.gather(
            ask(network, prompt, OracleDrafter(0.9), params), ask(network, PROMPT, OracleDrafter(0.9))
        )
        assert long.tokens == tuple(continuation(prompt, 10)) and short.tokens == EXPECTED


@pytest.mark.usefixtures("each_policy")
async def test_a_poisoned_session_fails_alone():
    def target(context):
        return POISON if len(context) == 20 and context[0] == 1 else next_token(context)

    engine = FakeEngine(num_blocks=200, target=target)
    async with running(engine) as network:
        asked = [ask(network, [id, 2, 3], OracleDrafter(0.7, id)) for id in (1, 2, 3)]
        sick, *well = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(sick, NonFiniteLogits)
        for id, answer in enumerate(well, 2):
            assert answer.tokens == tuple(continuation([id, 2, 3], 40))


@pytest.mark.usefixtures("each_policy")
async def test_a_step_that_raises_fails_its_sessions_and_the_server_lives():
    class Flaky(FakeEngine):
        def forward(self, segments):
            if len(self.batches) == 6:
                self.batches.append(0)
                raise RuntimeError("out of memory")
            return super().forward(segments)

    async with running(Flaky(num_blocks=200)) as network:
        with pytest.raises(EngineError, match="log says why"):
            await ask(network, PROMPT, NoneDrafter())
        assert (await ask(network, PROMPT, OracleDrafter(0.5))).tokens == EXPECTED


@pytest.mark.usefixtures("each_policy")
async def test_a_drafter_that_crashes_costs_drafts_and_nothing_else():
    class Crashing(OracleDrafter):
        def commit(self, tokens):
            raise RuntimeError("broken")

    async with running(FakeEngine()) as network:
        assert (await ask(network, PROMPT, Crashing(1.0))).tokens == EXPECTED


@pytest.mark.usefixtures("each_policy")
async def test_a_reader_that_vanishes_in_any_state_frees_everything():
    """`running` checks on exit that every KV block came back."""
    async with running(FakeEngine(num_blocks=200), limits=SessionLimits(linger=0.01)) as network:
        for patience in range(12):
            task = asyncio.ensure_future(ask(network, PROMPT, OracleDrafter(0.7)))
            for _ in range(patience * 4):
                await asyncio.sleep(0)
            await cancelled(task)


async def test_two_sends_of_a_stream_never_overlap():
    """gRPC forbids it; a failure must wait for the verdict that is being written."""
    sending, replies = 0, []
    sequence = [Open((3, 1, 4), SamplingParams(temperature=0, max_tokens=100)), Draft(1, DraftBlock(190))]
    requests = iter(sequence)

    async def receive():
        await asyncio.sleep(0.02)
        return next(requests)

    async def send(message):
        nonlocal sending
        sending += 1
        assert sending == 1
        await asyncio.sleep(0.005)
        replies.append(message)
        sending -= 1

    async with running(FakeEngine()) as network:
        await network.serve(receive, send)
        assert isinstance(replies[-1], Failure) and replies[-1].code == "future_base"
        assert not network.manager.remembered


@pytest.mark.usefixtures("each_policy")
async def test_nothing_is_computed_for_a_reader_who_is_gone():
    engine = FakeEngine()
    async with running(engine, limits=SessionLimits(linger=60)) as network:
        stream = network.connect()
        await stream.send(Open((3, 1, 4), SamplingParams(temperature=0, max_tokens=150)))
        await stream.receive()
        await stream.close()
        await stream.task
        (session,) = network.manager.remembered
        while session.in_step:
            await asyncio.sleep(0.001)
        computed = engine.computed
        await asyncio.sleep(0.03)
        assert engine.computed == computed and not session.sequence.finish_reason
        assert (await ask(network, PROMPT, OracleDrafter(0.5))).tokens == EXPECTED
