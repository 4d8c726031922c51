"""Output tokens per second and time to first token of `opensled serve --engine llamacpp`, against llama.cpp's server.

The same GGUF, one core for each server and the other for clients and devices, the same chats, contenders in turns.
"""

import os
import statistics
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks import peer_raw
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.peer_chats import Contender, percentile
from lab.benchmarks.peer_prompts import LONG, OWN, SHORT, SHORT_OWN, Chats
from lab.benchmarks.peer_raw import PROMPT_MS, TOKEN_MS, RawSpeeds
from lab.benchmarks.peer_server import Running, command, running
from lab.benchmarks.program import pinned
from lab.testbed.processes import Process, free_port
from lab.testbed.prompts import Chat
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file

GGUF = "OPENSLED_PEER_GGUF"  # environment variable: the model file; without it the tiny one
PEER, OURS = "llama-server", "OpenSLED"
PEER_DRAFTS, OUR_DRAFTS = "llama-server, n-gram drafts", "OpenSLED, lookup drafts"
SLOTS, CONTEXT = 8, 1024
MAX_TOKENS = 128
SAMPLED = 0.8  # temperature
SPECULATIVE = "ngram_mod"  # of llama-server's ways to draft without a second model
PEER_WISHES = {"min_p": 0.0}  # else it draws from fewer tokens
SERVER_CORE, CLIENT_CORE = 0, 1
REQUIRED = 0.95
# Eight long prompts take a minute on one core.
REPEATS = {(SHORT, 1): 5, (SHORT, 4): 3, (SHORT, 8): 3, (LONG, 1): 3, (LONG, 4): 2, (LONG, 8): 1}


class Cell(NamedTuple):
    """One comparison: how many users ask what, and how."""

    users: int
    kind: str
    temperature: float
    ours: str = OURS
    peer: str = PEER

    def series(self, contender: str) -> str:
        return f"{contender}, {self.name}"

    @property
    def name(self) -> str:
        how = f"T={self.temperature:g}" if self.temperature else "greedy"
        drafts = ", with drafts" if self.ours == OUR_DRAFTS else ""
        return f"{self.users} user{'s'[: self.users - 1]}, {self.kind}, {how}{drafts}"


QUICK = (Cell(2, SHORT, 0.0),)
ALL = (
    *(Cell(users, kind, how) for how in (0.0, SAMPLED) for kind in (SHORT, LONG) for users in (1, 4, 8)),
    *(Cell(1, SHORT, how, OUR_DRAFTS, PEER_DRAFTS) for how in (0.0, SAMPLED)),
)


@dataclass
class Results:
    """What all cells came to."""

    samples: dict[str, list[float]] = field(default_factory=dict)  # series -> output tokens/s of each repeat
    first_ms: dict[str, dict[str, float]] = field(default_factory=dict)  # series -> time to first text
    cpu_ms: dict[str, float] = field(default_factory=dict)  # series -> of the server, an output token
    raw_ms: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # see `peer_raw.measured`


def measure(quick: bool) -> Figure:
    """Every cell, with servers of its own."""
    model = Path(os.environ.get(GGUF) or model_file("tiny", "*.gguf"))
    results = Results()
    cells = QUICK if quick else ALL
    measure_raw(model, results, 2 if quick else 10)
    for cell in cells:
        measure_cell(cell, model, results, 2 if quick else REPEATS[cell.kind, cell.users])
    return figure(model, cells, results)


def measure_raw(model: Path, results: Results, repeats: int) -> None:
    """Both builds of llama.cpp on one core."""
    with pinned(SERVER_CORE), _llama_server(model, "none") as server:
        results.raw_ms = peer_raw.measured(RawSpeeds(model, server.url), repeats)


def measure_cell(cell: Cell, model: Path, results: Results, repeats: int) -> None:
    """Both contenders in turns, A B B A."""
    weights = LlamaModel(model, 0)
    chats = Chats(cell.kind, lambda text: len(weights.tokenize(text)))
    with pinned(CLIENT_CORE), ExitStack() as stack:
        contenders = {cell.peer: _peer(stack, model, cell.peer), cell.ours: _ours(stack, model, cell.ours)}
        for contender in contenders.values():
            contender.speed([{"messages": chats.greeting(), "max_tokens": 2}] * cell.users)
            contender.forget()
        for repeat in range(repeats):
            bodies = [_body(chats.next(), cell.temperature, user) for user in range(cell.users)]
            for name in sorted(contenders, reverse=bool(repeat % 2)):
                own = {} if name == cell.ours else PEER_WISHES
                speed = contenders[name].speed([{**body, **own} for body in bodies])
                results.samples.setdefault(cell.series(name), []).append(speed)
        for name, contender in contenders.items():
            results.cpu_ms[cell.series(name)] = round(1000 * contender.cpu_s / contender.tokens, 3)
            results.first_ms[cell.series(name)] = {
                f"p{share}": round(1000 * percentile(contender.first_s, share / 100), 1) for share in (50, 99)
            }


def _body(chat: Chat, temperature: float, seed: int) -> dict[str, Any]:
    """The same tokens to draw from for both."""
    body = {"messages": chat, "max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": temperature}
    return {**body, "seed": seed, "top_k": 40, "top_p": 0.95} if temperature else body


def _llama_server(model: Path, speculative: str) -> AbstractContextManager[Running]:
    port = free_port()
    return running(command(model, port, SLOTS, CONTEXT, speculative), port)


def _peer(stack: ExitStack, model: Path, name: str) -> Contender:
    with pinned(SERVER_CORE):
        server = stack.enter_context(_llama_server(model, SPECULATIVE if name == PEER_DRAFTS else "none"))
    return Contender(server.url, server.pid)


def _ours(stack: ExitStack, model: Path, name: str) -> Contender:
    kv = ("--kv-tokens", str(SLOTS * CONTEXT), "--threads", "1")
    own_file = ("--model", str(model), "--dtype", "stored")  # as the peer serves it, whatever its size
    serve = ("serve", "--engine", "llamacpp", *own_file, "--listen", "127.0.0.1:0", *kv, "--drafter", "none")
    with pinned(SERVER_CORE):
        server = stack.enter_context(Process(serve, isolated=True))
    drafter = "none" if name == OURS else "lookup"  # the one that needs no model
    own = ("--http", "127.0.0.1:0", "--threads", "1", "--drafter", drafter)
    edge = ("edge", "--server", server.wait_ready(), *own)
    device = stack.enter_context(Process(edge, isolated=True)).wait_ready()
    return Contender(f"http://{device}", server.process.pid)


COMPARED = (
    "`opensled serve --engine llamacpp` and one `opensled edge`, against llama.cpp's own server from the wheel "
    f"`xllamacpp` (continuous batching, prompt cache; {SLOTS} slots of {CONTEXT} positions, as much KV for OpenSLED): "
    "the same GGUF, one thread and one core for each server, the other core for the devices and the one HTTP client "
    "of both; users who ask at the same time through the OpenAI API, streamed; passages of this project's documents "
    f"behind a system prompt that all share and both have seen; {MAX_TOKENS} tokens each, behind the model's own end "
    "if need be. OpenSLED's time includes its device's HTTP, templates and a gRPC hop. The facts correct each ratio "
    "for the speed of the two builds of llama.cpp (by the prompt and answer tokens of a cell); they have the server's "
    "own CPU time, which work beside it on the machine changes less, and times to the first text."
)
LOSES = (
    "With one user, the device and the gRPC hop come on top. With several users, attention looks past the KV of all "
    "others: OpenSLED keeps the cells of all sequences in one pool, which many sequences of any length and draft trees "
    "need; llama-server was given a part for each slot. It shares a prefix to the token, OpenSLED to the block of 16."
)


def figure(model: Path, cells: Sequence[Cell], results: Results) -> Figure:
    """Ratios of output tokens/s; all else is among the facts."""
    ratios = tuple(
        Comparison(cell.name, cell.series(cell.ours), cell.series(cell.peer), _required(cell))
        for cell in cells
    )
    return Figure(
        title="llama.cpp's own server on the same GGUF",
        unit="output tokens/s",
        more_is_better=True,
        compared=COMPARED,
        loses=LOSES,
        samples=results.samples,
        ratios=ratios,
        facts={
            "model": model.name,
            "raw ms, the least of all repeats": {
                build: {what: round(min(each), 3) for what, each in speeds.items()}
                for build, speeds in results.raw_ms.items()
            },
            "time to first text, ms": results.first_ms,
            "CPU of the server, ms an output token": results.cpu_ms,
            "cells": {cell.name: _facts(cell, results) for cell in cells},
        },
    )


def _required(cell: Cell) -> float | None:
    return REQUIRED if cell.ours == OURS and not cell.temperature else None


def _facts(cell: Cell, results: Results) -> dict[str, float]:
    """The corrected ratio of speeds, and ours over the peer's time to first text: below 1 is better there."""
    pairs = zip(results.samples[cell.series(cell.ours)], results.samples[cell.series(cell.peer)])
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    ours, theirs = results.first_ms[cell.series(cell.ours)], results.first_ms[cell.series(cell.peer)]
    return {
        "ratio corrected for raw speed": round(ratio * raw_ratio(cell, results), 3),
        "CPU of the server, theirs over ours": round(
            results.cpu_ms[cell.series(cell.peer)] / results.cpu_ms[cell.series(cell.ours)], 3
        ),
        **{f"time to first text, {key}, ours over theirs": round(ours[key] / theirs[key], 3) for key in ours},
    }


def raw_ratio(cell: Cell, results: Results) -> float:
    """How many times as long our build takes for the tokens of a cell, at its best: other work only adds to it."""
    prompt = OWN if cell.kind == LONG else SHORT_OWN
    took = [
        prompt * min(speeds[PROMPT_MS]) + MAX_TOKENS * min(speeds[TOKEN_MS])
        for speeds in (results.raw_ms["llama-cpp-python"], results.raw_ms["xllamacpp"])
    ]
    return took[0] / took[1]
