"""Fakes for tests of the whole system in one process: a target without tensors, drafters, a lossy link."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edge_client.drafters.base import Drafter, DrafterFactory
from edge_client.link.remote import RetryPolicy
from opensled.core.errors import NonFiniteLogits, Unreachable
from opensled.core.messages import ClientMessage, DraftToken, SamplingParams, ServerMessage
from opensled.core.sampling import Sampler
from opensled.text.call_forms import BARE
from opensled.wire import codec
from tests.loops import cancelled
from verify_server.access.client_limits import ClientLimits
from verify_server.access.clients import Client, Clients, StreamAccount
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionManager
from verify_server.engine.base import EngineInfo, SampleRequest, Scores, Segment, TargetEngine
from verify_server.front.session_stream import serve_stream

VOCAB = 50
EOS = 0
POISON = 49  # a context that ends with this id gives non-finite logits


def next_token(context: Sequence[int]) -> int:
    """The fake target: a token that depends on every token before it, never EOS by chance."""
    digest = hashlib.blake2b(bytes(context), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (POISON - 1)


def continuation(prompt: Sequence[int], count: int) -> list[int]:
    """What the fake target writes after `prompt`."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class FakeScores(Scores):
    """Row i: the context its token saw, read back through the KV blocks. The target is sure of its token."""

    def __init__(self, contexts: list[list[int]], target: Callable[[Sequence[int]], int]) -> None:
        self._contexts, self._target = contexts, target

    vocab_size = VOCAB

    def sample(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request: SampleRequest) -> list[int] | NonFiniteLogits:
        try:
            return self._own(*request)
        except NonFiniteLogits as error:
            return error

    def _own(
        self, rows, params: SamplingParams, key: bytes, position: int, masks=None, emitted=None
    ) -> list[int]:
        for offset, row in enumerate(rows):
            assert len(self._contexts[row]) == position + offset
        return [self._token(row, masks and masks[index]) for index, row in enumerate(rows)]

    def probs_of(self, rows, ids, params, masks=None, emitted=None) -> list[float]:
        tokens = [self._token(row, masks and masks[index]) for index, row in enumerate(rows)]
        return [float(id == token) for id, token in zip(ids, tokens)]

    def sample_residual(self, row, draft_probs, params, key, position, mask=None, emitted=None) -> int:
        assert len(self._contexts[row]) == position
        return self._token(row, mask)

    def entropy(self, rows):
        return [0.0 for _ in rows]

    def top(self, rows, count):
        return [tuple((id, -1.0 - id) for id in range(count)) for _ in rows]

    def logprobs(self, rows, ids, count):
        return [((id, -0.5 - row), *top) for row, id, top in zip(rows, ids, self.top(rows, count))]

    def ranks(self, rows, ids):
        """Of a row nothing but its context, so that a wrong one shows."""
        return [1 + sum(self._contexts[row]) for row in rows]

    def _token(self, row: int, mask: bytes | None) -> int:
        context = self._contexts[row]
        if context[-1] == POISON:
            raise NonFiniteLogits("the target gave non-finite logits for this sequence")
        token = self._target(context)
        while mask is not None and not mask[token // 8] >> token % 8 & 1:
            token = (token + 1) % VOCAB
        return token


@dataclass
class FakeEngine(TargetEngine):
    """Keeps tokens in its KV slots and predicts from them, so that a wrong block or rollback changes the text."""

    num_blocks: int = 64
    block_size: int = 4
    context_length: int = 200
    target: Callable[[Sequence[int]], int] = next_token
    slots: dict[int, int] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    computed: int = 0  # positions
    facts: Mapping[str, object] = field(default_factory=dict)  # other values of its info
    # Sees the segments before each step
    before: Callable[[Sequence[Segment]], object] = lambda segments: None

    @property
    def info(self) -> EngineInfo:
        info = EngineInfo(
            "fake", VOCAB, self.context_length, (EOS,), "exact", "float64", "cpu", self.num_blocks, self.block_size,
            shares_blocks=True, max_tree=64,
        )  # fmt: skip
        return replace(info, **self.facts) if self.facts else info

    def forward(self, segments: Sequence[Segment]) -> FakeScores:
        self.before(segments)
        self.batches.append(len(segments))
        contexts = []
        for segment in segments:
            self.computed += len(segment.tokens)
            for index, token in enumerate(segment.tokens):
                self.slots[self._slot(segment, segment.start + index)] = token
            stop = segment.start + len(segment.tokens)
            kept = self._read(segment, stop) if segment.rows else []
            for last in range(stop - segment.rows, stop):
                contexts.append([kept[place] for place in _seen(segment, last)])
        return FakeScores(contexts, self.target)

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        segment = Segment((), 0, tuple(blocks), 0)
        moved = {target: self.slots[self._slot(segment, source)] for source, target in moves}
        for target, token in moved.items():
            self.slots[self._slot(segment, target)] = token

    def _read(self, segment: Segment, stop: int) -> list[int]:
        """The tokens at the places [0, stop)."""
        assert stop <= len(segment.blocks) * self.block_size, "no KV block covers this position"
        whole, rest = divmod(stop, self.block_size)
        sizes = [self.block_size] * whole + [rest]
        assert all(0 <= block < self.num_blocks for block in segment.blocks)
        first = [block * self.block_size for block in segment.blocks[: len(sizes)]]
        return [self.slots[slot + place] for slot, size in zip(first, sizes) for place in range(size)]

    def _slot(self, segment: Segment, position: int) -> int:
        assert position < len(segment.blocks) * self.block_size, "no KV block covers this position"
        block = segment.blocks[position // self.block_size]
        assert 0 <= block < self.num_blocks
        return block * self.block_size + position % self.block_size


def _seen(segment: Segment, last: int) -> list[int]:
    """Places in KV that the token at place `last` sees: all before it, of a tree those on its path."""
    first = segment.start + len(segment.tokens) - len(segment.parents)
    path, index = [], last - first
    while index >= 0 and segment.parents:
        path.append(first + index)
        index = segment.parents[index]
    return [*range(min(last + 1, first) if segment.parents else last + 1), *reversed(path)]


class FakeText:
    """Byte-sized ids, no template."""

    chat_template = tool_template = ""
    calls = BARE
    template_variables: tuple[str, ...] = ()
    eos_ids = (EOS,)
    tokenizer_json = b'{"version": "1.0"}'
    tokenizer_hash = "0" * 64
    fingerprint = "f" * 64

    def __init__(self, vocab_size: int = VOCAB) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(1 + byte % (POISON - 1) for byte in text.encode())

    def render(self, messages, *more) -> tuple[int, ...]:
        return self.encode("".join(turn.content for turn in messages))


class HeldText(FakeText):
    """Its tokenizer is stuck, as native code can be, until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.waiting = threading.Event(), 0

    def encode(self, text):
        self.waiting += 1
        assert self.go.wait(60)
        return super().encode(text)


class Made(DrafterFactory):
    """Its drafters are those that `make` makes."""

    def __init__(self, make: Callable[[], Drafter], name: str = "made") -> None:
        self._make, self.name = make, name

    def create(self) -> Drafter:
        return self._make()


class Follower(Drafter):
    """Knows the text."""

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self.truth = list(prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        self.truth += tokens


class OracleDrafter(Follower):
    """Knows the fake target and errs at random: right with probability `acceptance`."""

    def __init__(self, acceptance: float, seed: int = 0, target: Callable = next_token) -> None:
        self._acceptance, self._random, self._target = acceptance, random.Random(seed), target
        self.truth: list[int] = []

    def propose(self) -> Iterator[DraftToken]:
        context = list(self.truth)
        while True:
            token = self._target(context)
            if self._random.random() >= self._acceptance:
                token = 1 + token % (POISON - 1)
            context.append(token)
            yield DraftToken(token, 0.9)


@dataclass
class Weather:
    """What a link does to messages, each way."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # chance that a message overtakes the one before it
    seed: int = 0


IMPATIENT = RetryPolicy(silence=0.05, first_retry=0.001, slowest_retry=0.01, first_open=60.0, give_up=60.0)


# Of a client that is counted under no name, and so may send what it likes
UNLIMITED = StreamAccount(
    Clients(ClientLimits(), Tenants(), 0, Counter(), time.monotonic), Client("", "", ())
)


class MemoryNetwork:
    """Streams to a session manager in this process, through the real codec, in the given weather; of one tenant."""

    tenant = "local"
    fallback = ""  # of `edge_client.link.link.Link`

    def __init__(self, manager: SessionManager, weather: Weather = Weather()) -> None:
        self.manager, self.weather = manager, weather
        self.random = random.Random(weather.seed)
        self.tasks: set[asyncio.Task] = set()
        self.streams: list[MemoryStream] = []
        self.uplinked: list[ClientMessage] = []

    def connect(self) -> MemoryStream:
        stream = MemoryStream(self)
        self.streams.append(stream)
        task = asyncio.ensure_future(self.serve(stream.server_receive, stream.server_send))
        self.tasks.add(task)
        stream.task = task
        return stream

    def serve(self, receive, send, seconds=None):
        return serve_stream(self.manager, self.tenant, receive, send, seconds, UNLIMITED)

    async def close(self) -> None:
        for stream in self.streams:
            await stream.close()
        await cancelled(*self.tasks)

    def deliver(self, queue: asyncio.Queue, message) -> None:
        """Put a message into a queue, weather permitting."""
        copies = 1 + (self.random.random() < self.weather.duplicate)
        for _ in range(copies):
            if self.random.random() < self.weather.loss:
                continue
            queue.put_nowait(message)
            if self.random.random() < self.weather.reorder and queue.qsize() > 1:
                waiting = queue._queue  # a deque: asyncio.Queue has no public way to swap the last two
                waiting[-1], waiting[-2] = waiting[-2], waiting[-1]


class MemoryStream:
    """One stream; both ends speak bytes of the real wire."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._up: asyncio.Queue = asyncio.Queue()
        self._down: asyncio.Queue = asyncio.Queue()
        self._closed = False
        self.task: asyncio.Task | None = None

    async def send(self, message: ClientMessage) -> None:
        if self._closed:
            raise Unreachable("closed")
        self._network.uplinked.append(message)
        self._network.deliver(self._up, codec.encode_client(message))

    async def receive(self) -> ServerMessage:
        if self._closed:
            raise Unreachable("closed")
        message = await self._down.get()
        if message is None:
            raise Unreachable("closed")
        return codec.decode_server(message)

    async def close(self, linger: float = 0.0) -> None:
        if not self._closed:
            self._closed = True
            self._up.put_nowait(None)
            self._down.put_nowait(None)

    async def server_receive(self) -> ClientMessage | None:
        message = await self._up.get()
        return None if message is None else codec.decode_client(message)

    async def server_send(self, message: ServerMessage) -> None:
        self._network.deliver(self._down, codec.encode_server(message))


class Silent(OracleDrafter):
    """Leaves it to the server to decode, so that the number of positions it computes is certain."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def propose(self):
        return iter(())


class CountingText(FakeText):
    """Counts what was tokenized."""

    def __init__(self):
        self.encoded = 0

    def encode(self, text):
        self.encoded += 1
        return super().encode(text)

    def render(self, messages, *more):
        return self.encode("".join(turn.content for turn in messages))
