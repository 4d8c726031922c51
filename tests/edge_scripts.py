"""Verifiers that say what a test of the edge loop wants."""

import asyncio

from edge_client.round.drafting import DraftThread
from opensled.core.messages import Draft, Limits
from opensled.core.protocol import Truth
from opensled.core.turns import Turn
from tests.system import until

PROMPT = (3, 1, 4)


class Watched(DraftThread):
    """Its tests see when it is done."""

    asked = None  # for the latest block

    def draft(self, truth, budget):
        self.asked = super().draft(truth, budget)
        return self.asked

    async def settle(self):
        """Wait until every block that was asked for is drafted, and `generate` has sent it."""
        while self.asked:
            asked = self.asked
            await until(asked.done)
            for _ in range(9):  # more passes of the event loop than `generate` takes
                await asyncio.sleep(0)
            if asked is self.asked:
                return


class Script:
    """A verifier that says what the test wants, each time after the device's block; without `thread`, at once."""

    def __init__(self, verdicts, hint=None, thread=None):
        self.thread = thread
        self.truth, self.noise_key, self.limits = Truth(PROMPT), b"k" * 16, Limits(8, 100)
        self.draft_probs, self.turn = False, Turn(hint)
        self.verdicts = iter(verdicts)
        self.drafts: list[Draft] = []
        self.closed = False

    async def submit(self, draft):
        self.turn.draft(draft)
        self.drafts.append(draft)

    async def next_verdict(self):
        if self.thread:
            await self.thread.settle()
        return next(self.verdicts)

    async def close(self):
        self.closed = True
