"""A server for whatever a test does to it, and a bystander whose words must stay the target's own meanwhile."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace

from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Link
from opensled.core.errors import Unsupported
from tests.bad_input import CONTEXT, MAX_DRAFT, MAX_TREE, PROMPT, WIDTH
from tests.fakes import FakeEngine, FakeText, OracleDrafter, continuation
from tests.serving import GREEDY, blocks_return, finish, linked, serving
from tests.small_tokenizer import small_tokenizer
from tests.system import ask, until
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.rules.served import ServedRules

BYSTANDER_TOKENS = 20
HELD = (9, 9, 9)


class GatedEngine(FakeEngine):
    """Its logits are wider than the vocabulary; a closed gate holds the steps up that compute the prompt HELD."""

    def __init__(self) -> None:
        super().__init__(num_blocks=200, context_length=CONTEXT)
        self.gate = threading.Event()
        self.gate.set()

    @property
    def info(self):
        return replace(super().info, vocab_size=WIDTH)

    def forward(self, segments):
        if any(segment.tokens[: len(HELD)] == HELD for segment in segments):
            assert self.gate.wait(60)
        return super().forward(segments)


class GatedText(FakeText):
    """No chat template; a closed gate holds the tokenizer up."""

    tokenizer_json = small_tokenizer()

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.reading = threading.Event(), threading.Event()
        self.gate.set()

    def encode(self, text):
        self.reading.set()
        assert self.gate.wait(60)
        return super().encode(text)

    def render(self, messages, *more):
        if messages:
            raise Unsupported("this target has no chat template; send text (--raw) or token ids", "messages")
        return ()


@dataclass(frozen=True)
class Place:
    """One server."""

    manager: SessionManager
    address: str
    engine: GatedEngine
    text: GatedText


Scenario = Callable[[Place], Awaitable[None]]


class Bench:
    """Two servers, the second of which trusts devices; everything happens on one event loop."""

    def __init__(self, runner: asyncio.Runner, places: dict[bool, Place]) -> None:
        self._runner, self._places = runner, places

    def run(self, scenario: Scenario, trusting: bool = False) -> None:
        """`scenario` beside a bystander; afterwards nothing of it is left, and the server serves on."""
        self._runner.run(_beside_a_bystander(self._places[trusting], scenario))


@contextmanager
def two_servers(linger: float) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        places = {}
        for trusting in (False, True):
            engine, text = GatedEngine(), GatedText()
            rules = ServedRules(trust_devices=trusting)
            limits = SessionLimits(
                max_sessions=3, max_draft=MAX_DRAFT, max_tree=MAX_TREE, linger=linger, rules=rules
            )
            server = stack.enter_async_context(serving(limits=limits, engine=engine, text=text))
            places[trusting] = Place(*runner.run(server), engine, text)
        yield Bench(runner, places)
        runner.run(stack.aclose())


async def _beside_a_bystander(place: Place, scenario: Scenario) -> None:
    async with linked(place.address) as link:
        over = asyncio.Event()
        bystander = asyncio.ensure_future(_bystand(link, over))
        try:
            await scenario(place)
        finally:
            over.set()
            await bystander
        await blocks_return(place.manager)
        await _nobody_remembered(place.manager)
        assert (await finish(link))[1] == continuation((3, 1, 4), 20)


async def _bystand(link: Link, over: asyncio.Event) -> None:
    """Sequence after sequence until it is `over`, each with drafts and the target's own."""
    params = replace(GREEDY, max_tokens=BYSTANDER_TOKENS)
    while True:
        answer = await ask(link, PROMPT, OracleDrafter(0.5), params, stop=FixedLength(2))
        assert list(answer.tokens) == continuation(PROMPT, BYSTANDER_TOKENS)
        if over.is_set():
            return


async def _nobody_remembered(manager: SessionManager) -> None:
    await until(lambda: not (manager.remembered or manager.loop.machine.sessions))
