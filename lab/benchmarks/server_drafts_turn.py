"""Servers that differ in their own drafter, and one turn of one of them: prompts asked at once, and what it did.

All servers have core 0, one thread each; the clients have the other cores. Only the server that is asked works.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import httpx

from lab.benchmarks.real_contenders import READY_S, SERVER_CORE, serving
from lab.testbed.client import stream_chat
from lab.testbed.process_guard import cpu_s
from lab.testbed.processes import QUIET, Process, free_port
from opensled.core.errors import OpenSledError
from opensled.metrics.scrape import Between, scrape

KV_TOKENS = 20000  # of each server: eight prompts of some 1,000 tokens, and their answers
WARM = 16  # tokens of a first answer, which is not counted
TIMEOUT_S = 600.0  # of one answer
# What a server counts, by its name in a turn
COUNTED = {
    "steps": "steps_total",
    "places": "step_sessions_sum",  # sessions that the steps served, one after the other
    "drafts": "server_drafts_total",
    "drafted": "server_draft_tokens_total",
    "accepted": "server_accepted_tokens_total",
}


class Server(NamedTuple):
    """One that is ready."""

    grpc: str  # HOST:PORT
    http: str  # HOST:PORT, of its OpenAI API and its metrics
    pid: int


class Said(NamedTuple):
    """One answer, read by its user."""

    text: str
    tokens: int
    prompt_tokens: int
    seconds: float  # to its end
    first_s: float | None  # to the first text; None = the answer came in one piece


@contextmanager
def started(
    target: str, setup: str, drafters: Sequence[str], draft_model: str
) -> Iterator[dict[str, Server]]:
    """A server for each drafter; `draft_model`: of drafter model. This process keeps off their core meanwhile."""
    cores = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        found = {}
        for name in drafters:
            http = f"127.0.0.1:{free_port()}"
            process = serving(stack, target, setup, {SERVER_CORE}, _words(name, draft_model, http))
            found[name] = process, http  # they load one after the other: no two of them at once on one core
            process.wait_ready(READY_S)
        os.sched_setaffinity(0, cores - {SERVER_CORE} or cores)
        yield {name: _server(process, http) for name, (process, http) in found.items()}


def _words(drafter: str, draft_model: str, http: str) -> tuple[str, ...]:
    model = ("--draft-model", draft_model) if "model" in drafter.split("+") else ()
    return ("--server-drafter", drafter, *model, "--http", http, "--kv-tokens", str(KV_TOKENS), *QUIET)


def _server(process: Process, http: str) -> Server:
    return Server(process.address, http, process.process.pid)


async def warm(servers: Mapping[str, Server]) -> None:
    """One answer of each, which is not counted."""
    for server in servers.values():
        async with _client(server) as http:
            await _streamed(http, _body("Say hello.", {"temperature": 0, "max_tokens": WARM}))


def _client(server: Server) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{server.http}", timeout=TIMEOUT_S, trust_env=False)


def _body(prompt: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], **fields}


async def turn(
    server: Server, idle: Sequence[Server], asked: Mapping[str, Mapping[str, Any]], is_streamed: bool
) -> tuple[list[str], dict[str, Any]]:
    """The texts, and what is measured; `asked`: prompts of as many users, with more fields of the request.

    `seconds` are those that a user waits for the end of an answer, on average; `group_s` until the last answer ends,
    which the answers that draft least decide.
    """
    ask = _streamed if is_streamed else _whole
    before, worked, computed = scrape(server.http), _cpu_s(idle), cpu_s(server.pid)
    async with _client(server) as http:
        begun = time.monotonic()
        said = await asyncio.gather(*[ask(http, _body(text, fields)) for text, fields in asked.items()])
        group_s = time.monotonic() - begun
    worked, computed = _cpu_s(idle) - worked, cpu_s(server.pid) - computed
    between = Between(before, scrape(server.http))
    firsts = [each.first_s for each in said if each.first_s is not None]
    return [each.text for each in said], {
        "tokens": sum(each.tokens for each in said),
        "prompt_tokens": sum(each.prompt_tokens for each in said),
        "seconds": round(sum(each.seconds for each in said) / len(said), 4),
        "group_s": round(group_s, 4),
        "first_s": round(sum(firsts) / len(firsts), 4) if firsts else None,
        **{name: round(between.count(metric)) for name, metric in COUNTED.items()},
        "drafting_s": round(between.count("server_drafting_seconds_total"), 4),
        "cpu_s": round(computed, 2),
        "idle_cpu_s": round(worked, 2),
        "texts": [digest(each.text) for each in said],
    }


async def _streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> Said:
    first, begun = None, time.monotonic()
    async for reply in stream_chat(http, body):
        if reply.text and first is None:
            first = reply.seconds
    usage, seconds = reply.usage, time.monotonic() - begun
    return Said(reply.text, usage["completion_tokens"], usage["prompt_tokens"], seconds, first)


async def _whole(http: httpx.AsyncClient, body: dict[str, Any]) -> Said:
    begun = time.monotonic()
    reply = await http.post("/v1/chat/completions", json=body)
    seconds = time.monotonic() - begun
    if reply.status_code != 200:
        raise OpenSledError(f"HTTP {reply.status_code}: {reply.text}")
    found = reply.json()
    usage = found["usage"]
    text = found["choices"][0]["message"]["content"] or ""
    return Said(text, usage["completion_tokens"], usage["prompt_tokens"], seconds, None)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cpu_s(servers: Sequence[Server]) -> float:
    return sum(cpu_s(server.pid) for server in servers)
