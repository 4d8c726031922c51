"""Sending on when others misbehave: an old server, a slow reader, a server that hands its readers over."""

from __future__ import annotations

import asyncio

from edge_client.drafting import DraftThread
from edge_client.generate import generate
from edge_client.remote import RemoteSession
from opensled.messages import Draft, Open, SamplingParams
from opensled.v1 import verify_pb2 as pb
from tests.ahead_drafts import AheadDrafter, PatientEngine, SendsOn, SlowNetwork, continuations
from tests.fakes import FakeEngine, MemoryNetwork, continuation
from tests.system import CALM, ask, running, until

PROMPT, LONG = (3, 1, 4), SamplingParams(temperature=0.0, max_tokens=40)
TEXT = continuation(PROMPT, 40)


class OldServer(SlowNetwork):
    """To a server whose limits say nothing of continuations."""

    def deliver(self, queue: asyncio.Queue, message) -> None:
        if isinstance(message, pb.ServerMessage) and message.WhichOneof("kind") == "opened":
            message.opened.limits.ClearField("continuations")
        super().deliver(queue, message)


def test_to_an_old_server_nothing_is_sent_on():
    async def scenario():
        async with running(PatientEngine(), network_type=OldServer) as network:
            answer = await ask(network, PROMPT, AheadDrafter(1.0), LONG, stop=SendsOn(4))
            assert list(answer.tokens) == TEXT and not continuations(network)
            assert {len(round.tokens) for round in answer.rounds[1:-1]} == {5}

    asyncio.run(scenario())


class MovesInMidChain(SlowNetwork):
    """Its server hands all readers over when the first continuation has come, and takes no step before that."""

    handing: asyncio.Future[None] | None = None

    def _arrives(self, queue: asyncio.Queue, message) -> None:
        if isinstance(message, pb.ClientMessage) and message.WhichOneof("kind") == "open":
            self.manager.loop.engine.drafted.clear()  # also where the reader goes on, nothing is written before a draft
        super()._arrives(queue, message)

    def _drafted(self, draft: pb.Draft) -> None:
        if self.handing is not None:
            super()._drafted(draft)
        elif draft.continues:
            self.handing = asyncio.ensure_future(self._hand_over(draft))

    async def _hand_over(self, draft: pb.Draft) -> None:
        (session,) = self.manager.remembered
        await until(lambda: len(session.turn.unanswered) == 2)  # a block and its continuation have no verdict
        session.hand_over()
        super()._drafted(draft)


def test_a_move_in_mid_chain_loses_no_token_and_sends_the_chain_again():
    async def scenario():
        async with running(PatientEngine(), network_type=MovesInMidChain) as network:
            answer = await ask(network, PROMPT, AheadDrafter(1.0), LONG, stop=SendsOn(4))
            assert list(answer.tokens) == TEXT
            assert network.handing is not None and network.handing.done() and len(network.streams) == 2
            reopened = [message for message in network.uplinked if isinstance(message, Open)][1]
            again = network.uplinked[1 + network.uplinked.index(reopened)]
            assert isinstance(again, Draft) and not again.continues
            assert len(again.block.tokens) > 4, "both blocks, as one"
            return network.manager.loop.stats

    stats = asyncio.run(scenario())
    assert stats.stale == stats.void == 0, "no draft is computed in vain"
    # Before the first draft of a stream is verified, the server writes a token that the draft has as well.
    assert stats.drafts.tokens - stats.drafts.accepted == stats.unasked == 2


def test_a_reader_who_takes_his_time_costs_no_text_and_no_more_than_two_blocks_ahead():
    """While he does not read, the server computes what it was sent, and then waits for him."""

    async def scenario():
        async with running(FakeEngine(), network_type=MemoryNetwork) as network:
            session = RemoteSession(network.connect, Open(PROMPT, LONG), CALM)
            thread = DraftThread(AheadDrafter(1.0), SendsOn(4))
            tokens: list[int] = []
            try:
                await session.open()
                (served,) = network.manager.remembered
                async for commit in generate(session, thread, LONG):
                    tokens += commit.tokens
                    if not served.turn.server_drives:
                        await until(lambda: served.awaits_draft or served.sequence.finish_reason)
                        assert len(served.sequence) - len(PROMPT) - len(tokens) <= 2 * (4 + 1)
            finally:
                thread.close()
            assert tokens == TEXT and continuations(network)

    asyncio.run(scenario())
