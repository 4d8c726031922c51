"""Hints over the whole system: a server that changes its mind all the time, and devices that obey over any link."""

import asyncio
import random
from dataclasses import replace

import pytest

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from opensled.core.messages import Draft, DraftBlock, DraftToken, Open, SamplingParams
from scheduler.fcfs import Fcfs
from scheduler.plan import BatchPlan
from tests.fakes import IMPATIENT, FakeEngine, OracleDrafter, Weather, continuation
from tests.system import FOREVER, ask, running, until
from verify_server.round.outbox import MAX_UNREAD

PROMPT, LENGTH = (3, 1, 4), 60
EXPECTED = tuple(continuation(PROMPT, LENGTH))
PARAMS = SamplingParams(temperature=0, max_tokens=LENGTH)
STORM = Weather(loss=0.2, duplicate=0.2, reorder=0.2, seed=5)


class Advising(Fcfs):
    """First come, first served, with a hint in each verdict: what `advise` makes of the session's view."""

    def __init__(self, advise, draft_wait=FOREVER) -> None:
        super().__init__(draft_wait)
        object.__setattr__(self, "advise", advise)

    def plan(self, snapshot, profile, now):
        views = {view.id: view for view in snapshot.sessions}
        plan = super().plan(snapshot, profile, now)
        slices = [
            replace(piece, hint=self.advise(views[piece.session])) if piece.decide else piece
            for piece in plan.slices
        ]
        return replace(plan, slices=tuple(slices))


def by_place(seed):
    """Another hint after each token, the same for the same place of a sequence."""
    return lambda view: random.Random(seed * 1000 + view.context).choice([0, 0, 1, 2, 3, 8, None])


def asked(network, drafter, stop=FixedLength(4), params=PARAMS, **options):
    return asyncio.wait_for(ask(network, PROMPT, drafter, params, stop=stop, **options), 30)


def drafts_of(network) -> list[Draft]:
    return [message for message in network.uplinked if isinstance(message, Draft)]


DRAFTERS = [NoneDrafter, *(lambda right=right: OracleDrafter(right, seed=3) for right in (0.0, 0.5, 1.0))]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("drafter", DRAFTERS, ids=["none", "wrong", "half", "right"])
async def test_hints_in_every_order_change_no_text_and_nobody_waits_for_ever(seed, drafter):
    """The server waits for a draft as long as it takes: a device that owes one would stall, and reopen its stream."""
    async with running(FakeEngine(), policy=Advising(by_place(seed))) as network:
        answer = await asked(network, drafter())
        assert (answer.tokens, answer.reopened) == (EXPECTED, 0)
        assert all(len(draft.block.tokens) <= 4 for draft in drafts_of(network))
        settled = [round for round in answer.rounds if round.tokens][2:-1]
        assert all(len(round.tokens) > round.accepted for round in settled)


@pytest.mark.parametrize("seed", range(4))
async def test_hints_that_are_lost_repeated_or_overtaken(seed):
    policy = Advising(by_place(seed), draft_wait=0.02)
    async with running(FakeEngine(400), policy=policy, weather=replace(STORM, seed=seed)) as network:
        work = [asked(network, drafter(), patience=IMPATIENT) for drafter in DRAFTERS]
        assert [answer.tokens for answer in await asyncio.gather(*work)] == [EXPECTED] * len(work)


@pytest.mark.parametrize(
    ("hint", "stop", "longest"),
    [
        (2, FixedLength(4), 2),
        (7, FixedLength(4), 4),
        (7, HintLength(), 7),
        (1, HintLength(), 1),
        (None, HintLength(), 4),
        (40, HintLength(), 16),  # the server's own limit
    ],
)
async def test_a_block_is_as_long_as_hint_and_owner_allow_and_no_round_wastes_a_token(hint, stop, longest):
    async with running(FakeEngine(), policy=Advising(lambda view: hint)) as network:
        # A server may decode MAX_UNREAD tokens before it has the first draft, and three rounds end no sooner.
        length = MAX_UNREAD + 60
        answer = await asked(network, OracleDrafter(1.0), stop, replace(PARAMS, max_tokens=length))
        assert answer.tokens == tuple(continuation(PROMPT, length))
        settled = answer.rounds[2:-1]  # the first ones began before a hint was heard
        assert settled and {len(round.tokens) for round in settled} == {longest + 1}
        drafts = [draft for draft in drafts_of(network) if draft.block.tokens]
        assert drafts and all(draft.seconds > 0 for draft in drafts)


async def test_a_server_that_wants_no_drafts_gets_none():
    class Counting(OracleDrafter):
        asked = 0

        def propose(self):
            self.asked += 1
            return super().propose()

    async with running(FakeEngine(), policy=Advising(lambda view: 0)) as network:
        drafter = Counting(1.0)
        answer = await asked(network, drafter)
        assert answer.tokens == EXPECTED and answer.reopened == 0
        assert drafter.asked == 1 and len(drafts_of(network)) <= 1, "that was before the first hint was heard"


async def test_a_device_that_cannot_draft_costs_one_message_for_each_time_it_is_asked():
    policy = Advising(lambda view: 3 if view.context % 20 > 9 else 0)
    async with running(FakeEngine(), policy=policy) as network:
        answer = await asked(network, NoneDrafter())
        assert answer.tokens == EXPECTED and answer.reopened == 0
        asked_for = drafts_of(network)
        assert {draft.block.tokens for draft in asked_for} == {()} and len(asked_for) == 3


class Halted(Advising):
    """Rests whenever it is told to."""

    resting = False

    def plan(self, snapshot, profile, now):
        return BatchPlan() if Halted.resting else super().plan(snapshot, profile, now)


@pytest.mark.parametrize("right", [True, False], ids=["verified", "stale"])
async def test_a_draft_that_was_on_its_way_when_the_hint_left_stops_nothing(right, monkeypatch):
    """The device has heard by then that it must not draft: it would wait for the server, and the server for it."""
    async with running(FakeEngine(), policy=Halted(lambda view: 0)) as network:
        stream = network.connect()
        await stream.send(Open(PROMPT, PARAMS))
        await stream.receive()
        await stream.receive()
        monkeypatch.setattr(Halted, "resting", True)
        (session,) = network.manager.remembered
        await until(lambda: not session.in_step)
        drafted = EXPECTED[: len(session.sequence.tokens)] if right else (48,)
        await stream.send(Draft(1, DraftBlock(len(PROMPT), tuple(map(DraftToken, drafted[:16])))))
        await until(lambda: session.sources.device.turn.latest == 1)
        monkeypatch.setattr(Halted, "resting", False)
        network.manager.loop.wake()
        await until(lambda: session.sequence.finish_reason)
        await stream.close()
