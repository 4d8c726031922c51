"""Output tokens per second of `opensled serve` and its devices, against OpenAI servers from outside on the same GGUF.

Real processes on this machine, the same chats through the same HTTP client, contenders in turns.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.figure import Comparison, Figure, in_turns
from benchmarks.peer_server import LLAMA_SERVER, llama_cpp_python, llama_server, running
from edge_client.tokenizer import EdgeTokenizer
from opensled.store import model_file, model_path
from opensled_testbed.client import stream_chat
from opensled_testbed.processes import Process, free_port
from opensled_testbed.prompts import heldout_chats

USERS = (1, 4)
PEER, BINARY = "llama-cpp-python", "llama-server"
PLAIN, DRAFTS = "OpenSLED, no drafts", "OpenSLED, drafts of 4"
DRAFTERS = {PLAIN: "none", DRAFTS: "llamacpp"}
MAX_TOKENS = 64
# Its server punishes repetition unless it is told not to, which would be other texts and more work.
OWN_WISHES = {PEER: {"repeat_penalty": 1.0}}


@dataclass
class Contender:
    """One server asked by one number of users, and what it answered over all repeats."""

    url: str
    users: int
    bodies: Sequence[dict[str, Any]]
    tokenizer: EdgeTokenizer
    texts: dict[int, str] = field(default_factory=dict)  # by number of the chat, of the latest repeat
    ttft: list[float] = field(default_factory=list)  # seconds
    tpot: list[float] = field(default_factory=list)

    def speed(self) -> float:
        """Output tokens/s while every user asks an equal share of the chats, one after another."""
        self.texts.clear()
        seconds = asyncio.run(self._ask_all())
        return sum(map(self._tokens, self.texts.values())) / seconds

    def _tokens(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    async def _ask_all(self) -> float:
        """Seconds from the first question to the last answer."""
        async with httpx.AsyncClient(base_url=self.url, timeout=120, trust_env=False) as http:
            await http.get("/v1/models")  # the connection is not what is measured
            started = time.perf_counter()
            await asyncio.gather(*(self._ask_as(http, user) for user in range(self.users)))
            return time.perf_counter() - started

    async def _ask_as(self, http: httpx.AsyncClient, user: int) -> None:
        for number in range(user, len(self.bodies), self.users):
            first = last = 0.0
            async for reply in stream_chat(http, self.bodies[number]):
                self.texts[number] = reply.text
                if reply.text:
                    first = first or reply.seconds
                    last = reply.seconds
            self.ttft.append(first)
            if (tokens := self._tokens(self.texts[number])) > 1:
                self.tpot.append((last - first) / (tokens - 1))


def measure(quick: bool) -> Figure:
    """Every contender at each number of users."""
    chats, repeats = (4, 2) if quick else (24, 7)
    bodies = _bodies(chats)
    tokenizer = EdgeTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())
    contenders: dict[str, Contender] = {}
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        urls = _start(stack)
        for users in USERS:
            turn = {}
            for name, url in urls.items():
                own = [{**body, **OWN_WISHES.get(name, {})} for body in bodies]
                turn[_series(name, users)] = Contender(url, users, own, tokenizer)
            samples.update(in_turns({name: each.speed for name, each in turn.items()}, repeats))
            contenders |= turn
    return _figure(samples, contenders, chats)


def _series(name: str, users: int) -> str:
    return f"{name}, {_users(users)}"


def _users(users: int) -> str:
    return f"{users} user{'s' if users > 1 else ''}"


def _start(stack: ExitStack) -> dict[str, str]:
    """Every contender's server, up at the same time; name -> base URL. Only the one that is asked works."""
    model = model_file("tiny", "*.gguf")
    peers = {PEER: llama_cpp_python}
    if os.environ.get(LLAMA_SERVER):
        peers[BINARY] = llama_server
    urls = {}
    for name, command in peers.items():
        port = free_port()
        urls[name] = stack.enter_context(running(command(model, port), port))
    serve = ("serve", "--engine", "llamacpp", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1")
    server = stack.enter_context(Process(serve, isolated=True)).wait_ready()
    for name, drafter in DRAFTERS.items():
        edge = ("edge", "--server", server, "--drafter", drafter, "--http", "127.0.0.1:0", "--threads", "1")
        process = stack.enter_context(Process((*edge, "--draft-length", "4"), isolated=True))
        urls[name] = f"http://{process.wait_ready()}"
    return urls


def _bodies(count: int) -> list[dict[str, Any]]:
    """Greedy chats, of every task in turn: the texts must agree, so that all write the same tokens."""
    pools = heldout_chats()
    chosen = [pools[n % len(pools)][n // len(pools)] for n in range(count)]
    return [{"messages": chat, "max_tokens": MAX_TOKENS, "temperature": 0} for chat in chosen]


def _figure(samples: dict[str, list[float]], contenders: dict[str, Contender], chats: int) -> Figure:
    names = [name for name in (PEER, BINARY) if _series(name, 1) in samples]
    return Figure(
        title="OpenAI servers on the same GGUF",
        unit="output tokens/s",
        more_is_better=True,
        compared=(
            "`opensled serve --engine llamacpp` and an `opensled edge` of one thread each, without drafts and with "
            "drafts of 4 by tiny-draft, against llama-cpp-python's own OpenAI server (and llama.cpp's llama-server "
            f"where {LLAMA_SERVER} names it) of one thread: the same tiny f16 GGUF, the same greedy chats of "
            f"{MAX_TOKENS} tokens at most, streamed through the same HTTP client in a closed loop. Tokens are those "
            "of the target's tokenizer over the answer, for all alike."
        ),
        loses=(
            "With one user, on a model this small: a step of the tiny target takes a fraction of a millisecond, so "
            "what is measured is what surrounds it, and OpenSLED has a device process and a gRPC hop more. Drafts "
            "cannot pay where a token of the target costs no more than the round that verifies it. "
            "llama-cpp-python answers one request at a time, which several users feel as time to the first token."
        ),
        samples=samples,
        ratios=tuple(
            Comparison(
                f"{ours.removeprefix('OpenSLED, ')}, {_users(users)}, {name}",
                _series(ours, users),
                _series(name, users),
            )
            for name in names
            for users in USERS
            for ours in DRAFTERS
        ),
        facts={
            "chats": chats,
            "max_tokens": MAX_TOKENS,
            "threads of each server": 1,
            **_latencies(contenders),
        },
    )


def _latencies(contenders: dict[str, Contender]) -> dict[str, Any]:
    """TTFT and TPOT medians, and how many texts are the ones of the first contender."""
    first = next(iter(contenders.values())).texts
    return {
        series: {
            "ttft_ms": round(1000 * statistics.median(each.ttft), 3),
            "tpot_ms": round(1000 * statistics.median(each.tpot), 3),
            "same texts": sum(text == first[number] for number, text in each.texts.items()),
        }
        for series, each in contenders.items()
    }
