"""A server, a device, and draft servers that are fast, slow and away: what is drafted, and what people are told."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest

from edge_client.device.config import EdgeConfig
from edge_client.device.device import Device, connect
from edge_client.draft_servers import http_stream
from edge_client.draft_servers.server import ServerFactory
from edge_client.drafters.base import DrafterOptions
from edge_client.drafters.chain import ChainDrafter
from lab.testbed.processes import Process
from lab.testbed.reference import Reference
from opensled.core.answer import Chunk, Task
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from opensled.drafting.status import DraftStatus
from opensled.models.store import model_path
from tests.draft_stubs import HANDLERS, OllamaHandler, stub_of
from tests.loops import in_loop
from tests.tiny_drafts import tiny_info, tiny_tokenizer

QUESTION, TOKENS = "Write a short story about a rabbit in the big city.", 160
MOST = 100  # answers until a device is rested: one that ends before its first draft tells nothing
NPU_S = 1 / 8  # seconds of a token


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("llama_cpp")
    with Process(
        ["serve", "--model", "tiny", "--dtype", "float64", "--listen", "127.0.0.1:0"], isolated=True
    ) as server:
        yield server.wait_ready()


@pytest.fixture(scope="module")
def expected() -> tuple[int, ...]:
    reference = Reference(model_path("tiny"))
    prompt = reference.render_chat([{"role": "user", "content": QUESTION}])
    return tuple(reference.generate(prompt, max_tokens=TOKENS, temperature=0.0)[0])


async def answer(device: Device) -> tuple[tuple[int, ...], Chunk]:
    task = Task((ChatMessage("user", QUESTION),), SamplingParams(temperature=0.0, max_tokens=TOKENS))
    tokens: list[int] = []
    async with aclosing(device.answer(task)) as chunks:
        async for chunk in chunks:
            tokens += chunk.token_ids
    return tuple(tokens), chunk


@in_loop
async def answers(
    address: str,
    url: str,
    count: int,
    drafter: str = "auto",
    until: Callable[[Device], bool] = lambda device: True,
) -> tuple[list, Device]:
    """As many answers in turn as it takes `until` holds, and `count` more; the device as it was after them."""
    device = await connect(EdgeConfig(server=address, draft_url=url, drafter=drafter))
    try:
        found = []
        while not until(device):
            assert len(found) < MOST, device.status.words
            found.append(await answer(device))
        return [*found, *[await answer(device) for _ in range(count)]], device
    finally:
        await device.close()


def known_slow(device: Device) -> bool:
    """It rests by what was timed, not because its first draft came late."""
    return "and the server writes" in device.status.words


@pytest.mark.parametrize("drafter", ["server", "auto"])
def test_one_that_only_writes_slowly_is_rested(address, expected, drafter):
    told: list[DraftStatus] = []
    with stub_of(OllamaHandler, pause=NPU_S) as stub:
        found, _ = answers(
            address, stub.url, 3, drafter, lambda device: told.append(device.status) or known_slow(device)
        )
    assert {tokens for tokens, _ in found} == {expected} and not told[-1].drafting
    # It is asked again within eight answers
    assert sum(chunk.stats.drafted > 0 for _, chunk in found[-3:]) <= 1
    words = told[-1].words
    assert re.search(r"and the server writes \d+( tokens/s)?: drafts would give 0\.\d+x", words), words
    assert re.search(r"the draft server 127\.0\.0\.1:\d+ writes [678]\.\d tokens/s", words), words


def test_one_that_writes_fast_enough_drafts(address, expected):
    with stub_of(OllamaHandler) as stub:
        found, device = answers(address, stub.url, 6, "server")
    assert [tokens for tokens, _ in found] == [expected] * 6
    assert stub.pieces > TOKENS and sum(chunk.stats.accepted for _, chunk in found) > 0
    assert "draft by text" in device.drafter_name


def test_one_that_is_away_stops_nobody(address, expected):
    with stub_of(OllamaHandler) as stub:
        pass
    found, device = answers(address, stub.url, 2)
    assert [tokens for tokens, _ in found] == [expected] * 2
    assert "gives no drafts: it cannot be reached" in device.status.words


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_wait_for_a_silent_server_ends_at_once_where_no_drafts_are_wanted_any_more(kind, monkeypatch):
    monkeypatch.setattr(http_stream, "FIRST_S", 3600.0)
    with stub_of(HANDLERS[kind], pause=3600.0) as stub:
        made = ServerFactory(options=DrafterOptions(draft_url=stub.url))
        made.fit(tiny_info(), tiny_tokenizer())
        made.outage.worked()  # else its first token is soon awaited in the background
        drafter, known = ChainDrafter((made.create(),)), len(stub.heard)
        drafter.begin(
            tiny_tokenizer().encode("A rabbit"), Sampler(SamplingParams(temperature=0.0), noise_key(1))
        )
        thread = threading.Thread(target=lambda: next(drafter.propose(), None), daemon=True)
        thread.start()
        while len(stub.heard) == known:
            thread.join(0.01)
        drafter.interrupt()
        thread.join(60)
        assert not thread.is_alive()
        drafter.close()
