"""A drafter that works ahead, a policy that sends that on at once, and a link that takes its time."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_client.drafters.base import ModelDrafter
from edge_client.lengths.fixed import FixedLength
from opensled.messages import Draft, DraftToken
from opensled.v1 import verify_pb2 as pb
from tests.fakes import POISON, FakeEngine, FakeScores, MemoryNetwork, next_token
from verify_server.engine.base import Segment

ONE_WAY_S = 0.01


@dataclass(frozen=True)
class SendsOn(FixedLength):
    """Sends as much on as a block has, whenever the server takes it."""

    def sends_on(self, length: int, limit: int, hint: int | None = None) -> int:
        return self.most(limit, hint)


class AheadDrafter(ModelDrafter):
    """Knows the fake target and errs at random: right with probability `acceptance`."""

    def __init__(self, acceptance: float, seed: int = 0) -> None:
        super().__init__(1000)
        self._acceptance, self._random = acceptance, random.Random(seed)

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        return np.empty(0)

    def truncate(self, length: int) -> int:
        return length

    def _draw(self, logits: np.ndarray, position: int) -> DraftToken:
        token = next_token(self.sequence)
        return DraftToken(
            token if self._random.random() < self._acceptance else 1 + token % (POISON - 1), 0.9
        )


@dataclass
class PatientEngine(FakeEngine):
    """Takes its first step when a draft is there: else it might write the whole answer before."""

    drafted: threading.Event = field(default_factory=threading.Event)

    def forward(self, segments: Sequence[Segment]) -> FakeScores:
        assert self.drafted.wait(5), "no draft came"
        return super().forward(segments)


class SlowNetwork(MemoryNetwork):
    """Every message travels for ONE_WAY_S, besides what the weather does to it."""

    def deliver(self, queue: asyncio.Queue, message) -> None:
        asyncio.get_running_loop().call_later(ONE_WAY_S, self._arrives, queue, message)

    def _arrives(self, queue: asyncio.Queue, message) -> None:
        super().deliver(queue, message)
        if message.WhichOneof("kind") == "draft":
            self._drafted(message.draft)

    def _drafted(self, draft: pb.Draft) -> None:
        """A draft has arrived: a patient engine may take its first step."""
        engine = self.manager.loop.engine
        if isinstance(engine, PatientEngine):
            engine.drafted.set()


def continuations(network: MemoryNetwork) -> list[Draft]:
    """What devices sent before the verdict on the draft before it."""
    return [message for message in network.uplinked if isinstance(message, Draft) and message.continues]
