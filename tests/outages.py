"""A server that is lost and found again, in memory: its streams break, and it forgets its sequences."""

import random
import time
from contextlib import aclosing, asynccontextmanager
from functools import partial

from edge_client.device.device import Device
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RetryPolicy
from edge_client.offline.modes import PROVISIONAL, Offline
from opensled.core.answer import Chunk, Task
from opensled.core.errors import Unreachable
from opensled.core.messages import Limits, ModelInfo, RuleFacts, SamplingParams
from tests.devices import TOKENIZER, OracleFactory
from tests.fake_target import cycle
from tests.fakes import EOS, VOCAB, FakeEngine, FakeText, MemoryNetwork
from tests.serving import PROMPT
from tests.system import running
from tests.tiny_drafts import tiny_tokenizer

QUICK = RetryPolicy(silence=20.0, first_retry=0.001, slowest_retry=0.004, first_open=0.05, give_up=60.0)
LIMITS = Limits(max_draft=16, context_length=200)
RULES = (RuleFacts("match", trees=True), RuleFacts("ratio", draft_probs=True))
INFO = ModelInfo("fake", VOCAB, "f" * 64, (EOS,), LIMITS, RULES, "exact", "0", "0" * 64, False)
Slow = partial(FakeEngine, before=lambda segments: time.sleep(0.04))
LONG = Task(PROMPT, SamplingParams(temperature=0.0, max_tokens=60))


class LostStream:
    """What a device gets of a server that is away."""

    async def send(self, message):
        raise Unreachable("nobody listens")

    async def close(self, linger=0.0):
        pass


class Outages(MemoryNetwork):
    """`lose` the server, and `find` it again."""

    down = False
    lost = 0

    def connect(self, address=""):
        return LostStream() if self.down else super().connect()

    async def lose(self):
        self.down, self.lost = True, self.lost + 1
        for stream in self.streams:
            await stream.close()
        for session in list(self.manager.remembered):
            self.manager.forget(session)

    def find(self):
        self.down = False


@asynccontextmanager
async def device_that_loses(
    mode=PROVISIONAL, factory=None, patience=QUICK, memory=None, weather=None, engine=None, **offline
):
    """A device on a server that can be lost; yields (device, network)."""
    options = {"weather": weather} if weather else {}
    async with running(engine or FakeEngine(num_blocks=200), network_type=Outages, **options) as network:
        device = Device(
            network,
            INFO,
            TOKENIZER,
            factory or OracleFactory(),
            FixedLength(4),
            retry=patience,
            offline=Offline(mode, look=0.001, **offline),
            memory=memory,
        )
        try:
            yield device, network
        finally:
            for drafter in device._idle:
                drafter.close()


class Reader:
    """Reads an answer as a person would, while the server is lost at random moments, and found again."""

    def __init__(self, seed: int, chance: float = 0.15, longest: int = 12) -> None:
        self._random, self._chance, self._longest = random.Random(seed), chance, longest
        self._away_for = 0
        self.ids: list[int] = []
        self.screens: list[tuple[str, str]] = []  # confirmed, provisional
        self.chunks: list[Chunk] = []

    async def read(self, device, network, task=LONG) -> str:
        confirmed = ""
        async with aclosing(device.answer(task)) as chunks:
            async for chunk in chunks:
                confirmed += chunk.text
                self.ids += chunk.token_ids
                self.chunks.append(chunk)
                self.screens.append((confirmed, chunk.provisional))
                await self._fate(chunk, network)
        return confirmed

    async def _fate(self, chunk, network) -> None:
        if network.down:
            self._away_for -= 1
            if self._away_for <= 0:
                network.find()
        elif self._random.random() < self._chance:
            self._away_for = self._random.randint(1, self._longest)
            await network.lose()


QUESTION, LENGTH = "go", 120


def expected_text():
    tokens = list(FakeText().encode(QUESTION))
    start = len(tokens)
    while len(tokens) < start + LENGTH:
        tokens.append(cycle(tokens))
    return tiny_tokenizer().decode(tokens[start:])
