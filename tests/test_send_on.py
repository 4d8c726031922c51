"""Sending on before the verdict, from the drafter to the step and back, in one process on a fake target."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from edge_client.draft_job import BlockBudget, DraftJob
from edge_client.drafters.chain import ChainDrafter
from edge_client.generate import Exchange
from edge_client.lengths.fixed import FixedLength
from opensled.messages import Draft, DraftBlock, DraftToken, Limits, SamplingParams, Verdict
from opensled.protocol import Truth
from opensled.sampling import Sampler
from opensled.turns import Turn
from tests.ahead_drafts import AheadDrafter, PatientEngine, SendsOn, SlowNetwork, continuations
from tests.fakes import IMPATIENT, FakeEngine, OracleDrafter, Weather, continuation
from tests.system import ask, running
from verify_server.acceptance.served import ServedRules
from verify_server.session_manager import SessionLimits

PROMPT, LONG = (3, 1, 4), SamplingParams(temperature=0.0, max_tokens=40)
STORM = Weather(loss=0.2, duplicate=0.1, reorder=0.2, seed=5)


def texts(answers) -> list:
    return [(list(answer.tokens), answer.finish_reason) for answer in answers]


@pytest.mark.parametrize("acceptance", [1.0, 0.9, 0.5, 0.0])
def test_the_text_is_the_targets_own_and_rounds_overlap(acceptance):
    async def scenario():
        async with running(PatientEngine(), network_type=SlowNetwork) as network:
            answer = await ask(network, PROMPT, AheadDrafter(acceptance), LONG, stop=SendsOn(4))
            assert texts([answer]) == [(continuation(PROMPT, 40), "length")]
            assert continuations(network)
            stats = network.manager.loop.stats
            assert (stats.void == 0) == (acceptance == 1) and answer.reopened == 0
            assert stats.stale <= 1, "the first one, if the server wrote another token before it came"
            return answer.rounds

    rounds = asyncio.run(scenario())[1:-1]
    assert all(len(round.tokens) == round.accepted + 1 for round in rounds)
    assert acceptance < 1 or {len(round.tokens) for round in rounds} == {5}


def test_only_a_block_that_waited_for_a_verdict_costs_a_round_trip():
    async def waited(stop) -> int:
        async with running(PatientEngine(), network_type=SlowNetwork) as network:
            await ask(network, PROMPT, AheadDrafter(1.0), LONG, stop=stop)
            drafts = [message for message in network.uplinked if isinstance(message, Draft)]
            return len(drafts) - len(continuations(network))

    async def scenario():
        assert (await waited(FixedLength(4)), await waited(SendsOn(4))) == (8, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("acceptance", [1.0, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_a_storm_changes_no_text(acceptance, seed):
    async def scenario():
        async with running(
            FakeEngine(), draft_wait=0.02, weather=replace(STORM, seed=seed), network_type=SlowNetwork
        ) as network:
            asked = [
                ask(
                    network, (5, number), AheadDrafter(acceptance, number), LONG,
                    stop=SendsOn(1 + number), patience=replace(IMPATIENT, silence=0.1),
                )
                for number in range(4)
            ]  # fmt: skip
            answers = await asyncio.gather(*asked)
            assert texts(answers) == [(continuation((5, number), 40), "length") for number in range(4)]
            assert continuations(network) and any(answer.reopened for answer in answers)

    asyncio.run(scenario())


def test_under_a_rule_that_takes_none_none_is_sent():
    async def scenario(network_type, rule, limits):
        async with running(FakeEngine(), network_type=network_type, limits=limits) as network:
            answer = await ask(network, PROMPT, AheadDrafter(1.0), LONG, stop=SendsOn(4), rule=rule)
            assert list(answer.tokens) == continuation(PROMPT, 40) and not continuations(network)

    asyncio.run(
        scenario(SlowNetwork, "ratio", SessionLimits(linger=0.2, rules=ServedRules(trust_devices=True)))
    )


def test_a_drafter_that_does_not_work_ahead_sends_nothing_on():
    async def scenario():
        async with running(PatientEngine(), network_type=SlowNetwork) as network:
            answer = await ask(network, PROMPT, OracleDrafter(1.0), LONG, stop=SendsOn(4))
            assert list(answer.tokens) == continuation(PROMPT, 40) and not continuations(network)

    asyncio.run(scenario())


# -- the job ------------------------------------------------------------------------------------------


def done(work, at_pass=lambda passes: None):
    """The result of work, whose every pass takes a second."""
    passes = 0
    try:
        next(work)
        while True:
            passes += 1
            at_pass(passes)
            work.send(float(passes))
    except StopIteration as end:
        return end.value


def job_of(drafter, length=3) -> tuple[DraftJob, Truth]:
    truth, job = Truth(PROMPT), DraftJob(drafter, SendsOn(length), len(PROMPT), 50)
    job.begin(truth.tokens, Sampler(LONG, b"k" * 16))
    return job, truth


@pytest.mark.parametrize("chained", [False, True])
def test_what_is_drafted_ahead_is_sent_on_and_worked_ahead_of(chained):
    drafter, right = AheadDrafter(1.0), continuation(PROMPT, 20)
    job, truth = job_of(ChainDrafter([OracleDrafter(0.0), drafter]) if chained else drafter)
    first = DraftBlock(3, tuple(map(DraftToken, right[:3])))
    done(job.draft(truth.tokens, BlockBudget(8)))
    second = done(job.look_ahead(first, BlockBudget(8, behind=3)))
    assert second.block.base == 6 and second.block.ids == tuple(right[3:7])
    both = DraftBlock(3, first.tokens + second.block.tokens)
    third = done(job.look_ahead(both, BlockBudget(8, behind=4)))
    assert third.block.base == 10 and third.block.ids == tuple(right[7:11])
    truth.extend(Verdict(3, tuple(right[:4])))
    job.heard(truth.tokens)
    rest = DraftBlock(7, second.block.tokens[1:] + third.block.tokens)
    fourth = done(job.look_ahead(rest, BlockBudget(8, behind=4)))
    assert fourth.block.base == 14 and fourth.block.ids == tuple(right[11:15]) and job.wasted == 0


def test_a_verdict_that_contradicts_the_block_ends_the_work_ahead_and_what_was_sent_on_is_wasted():
    drafter, right = AheadDrafter(1.0), continuation(PROMPT, 20)
    job, truth = job_of(drafter)
    first = done(job.draft(truth.tokens, BlockBudget(8))).block
    second = done(job.look_ahead(first, BlockBudget(8, behind=3))).block
    both = DraftBlock(3, first.tokens + second.tokens)

    def fails(passes: int) -> None:
        if passes == 2:
            truth.extend(Verdict(3, (*right[:2], 1 + right[2] % 40)))
            job.heard(truth.tokens)

    assert done(job.look_ahead(both, BlockBudget(8, behind=4)), fails).block.tokens == ()
    assert job.wasted == 4
    block = done(job.draft(truth.tokens, BlockBudget(8))).block
    assert block.base == 6 and block.ids == tuple(continuation(truth.tokens, 3))
    assert job.wasted == 4 + 1, "and the token that was under way"


def test_nothing_is_sent_on_where_the_policy_waits():
    job, truth = job_of(AheadDrafter(1.0))
    job._policy = FixedLength(3)
    first = done(job.draft(truth.tokens, BlockBudget(8))).block
    assert done(job.look_ahead(first, BlockBudget(8, behind=3))).block.tokens == ()


# -- the exchange -------------------------------------------------------------------------------------


class Sequence:
    """An open sequence, and a drafter whose work is done by the test."""

    def __init__(self, continuations: bool = True) -> None:
        self.truth, self.turn, self.stop = Truth(PROMPT), Turn(), Told()
        self.limits = Limits(8, 100, continuations=continuations)
        self.fresh, self.ahead = [], []

    def draft(self, truth, budget):
        self.fresh.append(asyncio.Future())
        return self.fresh[-1]

    def look_ahead(self, block, budget):
        self.ahead.append((asyncio.Future(), block, budget))
        return self.ahead[-1][0]

    def heard(self, truth) -> None: ...

    def interrupt(self) -> None: ...


class Told(SendsOn):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(3)
        self.__dict__["heard"] = []

    def answered(self, block, accepted, seconds, awaited=True):
        self.heard.append((block.ids, accepted, seconds, awaited))

    def continued(self, stands):
        self.heard.append(stands)


def block_of(base: int, *ids: int) -> DraftBlock:
    return DraftBlock(base, tuple(map(DraftToken, ids)))


def exchange_with(sequence: Sequence) -> tuple[Exchange, list[float]]:
    clock = [10.0]
    exchange = Exchange(sequence, sequence, LONG, lambda: clock[0])
    exchange.draft()
    sequence.fresh[-1].set_result((block_of(3, 5, 6), 0.1, False))
    send(exchange, sequence)
    return exchange, clock


def send(exchange: Exchange, sequence: Sequence) -> Draft | None:
    draft = exchange.drafted()
    if draft is not None:
        sequence.turn.draft(draft)
        exchange.look_ahead(draft)
    return draft


def in_loop(test):
    def run(*arguments):
        async def scenario():
            test(*arguments)

        asyncio.run(scenario())

    return run


@in_loop
def exchange_sends_on():
    sequence = Sequence()
    exchange, clock = exchange_with(sequence)
    future, block, budget = sequence.ahead[-1]
    assert block == block_of(3, 5, 6) and budget.behind == 2 and exchange.working == {future}
    clock[0] = 11.0
    future.set_result((block_of(5, 7, 8, 9), 0.1, False))
    assert send(exchange, sequence) == Draft(2, block_of(5, 7, 8, 9), 0.1, continues=1)
    assert exchange.working == set() and sequence.ahead[-1][1:2] == (block_of(3, 5, 6, 7, 8, 9),)
    sequence.ahead[-1][0].set_result((block_of(8, 1, 2), 0.1, False))
    assert send(exchange, sequence) is None, "one continuation at a time"
    clock[0] = 12.0
    assert exchange.hear(Verdict(3, (5, 6, 7), 2, 1)).origins == ("accepted", "accepted", "bonus")
    assert len(sequence.fresh) == 1, "what was sent on is the next block"
    assert send(exchange, sequence) == Draft(3, block_of(8, 1, 2), 0.1, continues=2)
    clock[0] = 14.0
    commit = exchange.hear(Verdict(6, (8, 9, 4), 2, 2))
    assert (commit.drafted, commit.accepted) == (2, 2)
    assert sequence.stop.heard == [((5, 6), 2, 2.0, False), True, ((8, 9), 2, 3.0, True), False]
    assert len(sequence.fresh) == 2, "the next one was void, and the device drafts at once"


def test_an_exchange_sends_on_while_a_verdict_travels():
    exchange_sends_on()


@pytest.mark.parametrize("kind", ["hint", "short", "late", "none", "cut"])
def test_when_an_exchange_sends_nothing_on(kind):
    async def scenario():
        sequence = Sequence(continuations=kind != "none")
        exchange, _ = exchange_with(sequence)
        future, _, budget = sequence.ahead[-1]
        assert budget.behind == (0 if kind == "none" else 2)
        if kind == "hint":
            exchange.hear(Verdict(3, (5,), hint=0))
        if kind == "late":
            exchange.hear(Verdict(3, (5, 6, 7), 2, 1))
        if kind == "cut":  # another server takes less of what was sent
            sequence.turn.reopened(None)
            sequence.turn.draft(Draft(1, block_of(3, 5)))
        ids = {"short": (7,), "none": ()}.get(kind, (7, 8, 9))
        future.set_result((block_of(5, *ids), 0.1, False))
        assert exchange.drafted() is None and future not in exchange.working

    asyncio.run(scenario())


def test_a_hint_cuts_what_is_sent_on_but_not_the_guess_of_the_bonus_token():
    async def scenario():
        sequence = Sequence()
        exchange, _ = exchange_with(sequence)
        exchange.hear(Verdict(3, (5,), hint=1))
        sequence.ahead[-1][0].set_result((block_of(5, 7, 8, 9), 0.1, False))
        assert exchange.drafted().block.ids == (7, 8)

    asyncio.run(scenario())
