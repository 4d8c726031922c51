"""Both sides of figure `remote_drafts`: OpenSLED and its closest peers, the same target, drafts and link.

Targets on core 0, one thread each; draft servers, devices and links on core 1. Only the contender that is asked works.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from hw_profiles import catalog
from lab.benchmarks.peer_server import Running, command, running
from lab.benchmarks.real_contenders import DEVICE_CORE, NO_DRAFTER, READY_S, SERVER_CORE, ask, serving
from lab.benchmarks.real_texts import Prompt
from lab.benchmarks.remote_drafts_peer import PeerProcess, peer_process
from lab.benchmarks.server_drafts_turn import digest
from lab.testbed.process_guard import cpu_s
from lab.testbed.processes import QUIET, Process, free_port
from opensled.core.errors import OpenSledError
from opensled.core.messages import ChatMessage
from opensled.metrics.scrape import Between, scrape
from opensled.models.store import cache_folder, model_file
from verify_server.options.serve_config import ServeConfig
from verify_server.text.gguf_text import GgufText

CONTEXT = 2048  # positions of each user
TIMEOUT_S = 600.0  # of one answer
WARM = "Tell me about the sea."  # asked first, and not counted
WARM_TOKENS = 48  # by which a device learns whether to draft


class Contender(NamedTuple):
    """Who answers."""

    is_peer: bool
    drafter: str = "none"  # of `opensled edge`
    block: int = 0  # tokens of a peer's block, 0 = it drafts nothing
    together: bool = False  # a peer's target serves all users in one pass

    @property
    def asks(self) -> bool:
        """Whether it has a draft server."""
        return self.block > 0 or self.drafter == "server"


PEER_PLAIN, PLAIN = "peer, no drafts", "OpenSLED, no drafts"
SERVER, OWN = "OpenSLED, draft server", "OpenSLED, draft in process"
OURS: Mapping[str, Contender] = {
    PLAIN: Contender(False),
    SERVER: Contender(False, "server"),
    OWN: Contender(False, "llamacpp"),
}


def contenders(counts: Sequence[int], users: int) -> dict[str, Contender]:
    """Peers with blocks of each of `counts` tokens, and ours.

    With several users each block also as llama.cpp's server computes its slots: one pass over all of them.
    """
    peers = {PEER_PLAIN: Contender(True, together=True)}
    for count in counts:
        peers[f"peer, K = {count}"] = Contender(True, block=count)
        if users > 1:
            peers[f"peer, K = {count}, one pass for all"] = Contender(True, block=count, together=True)
    return {**peers, **OURS}


def plain_of(name: str) -> str:
    """Who decodes without drafts on the same side."""
    return PLAIN if name in OURS else PEER_PLAIN


class Pair(NamedTuple):
    """What both sides load."""

    target: str  # name or path
    engine: str
    draft: Path  # GGUF file


class Way(NamedTuple):
    """Where a contender is asked, or asks."""

    # HOST:PORT: of a device's API, or of a peer's draft server behind its link; "" = it has none
    address: str = ""
    pids: tuple[int, ...] = ()  # of device and draft server


class Sides(NamedTuple):
    """All that is ready."""

    peer: PeerProcess
    text: GgufText
    metrics: str  # HOST:PORT of our server
    pid: int  # of it
    ways: Mapping[str, Way]  # by contender


@contextmanager
def started(
    pair: Pair, link: str, users: int, found: Mapping[str, Contender], folder: Path
) -> Iterator[Sides]:
    """Everything on its core, for the length of a `with`; this process is on the devices' core meanwhile.

    `folder`: for the link as peers see it.
    """
    cores = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        metrics = f"127.0.0.1:{free_port()}"
        cells = users * CONTEXT
        config = ServeConfig(
            model=pair.target, engine=pair.engine, device="cpu", threads=1, kv_tokens=cells, log_level="error"
        )
        peer = stack.enter_context(peer_process(config, users, SERVER_CORE))
        more = (*NO_DRAFTER, "--kv-tokens", str(cells), "--http", metrics, *QUIET)
        serve = serving(stack, pair.target, pair.engine, {SERVER_CORE}, more)
        server = serve.wait_ready(READY_S)
        os.sched_setaffinity(0, {DEVICE_CORE})  # what is started from here on inherits it
        way = _linked(stack, link, server)
        back = exchanged(link, folder)
        ways = {}
        for name, contender in found.items():
            drafts = _draft_server(stack, pair.draft, users) if contender.asks else None
            if not contender.is_peer:
                ways[name] = _device(stack, way, contender.drafter, drafts, pair.draft)
            elif drafts:
                ways[name] = Way(_linked(stack, back, drafts.url.removeprefix("http://")), (drafts.pid,))
            else:
                ways[name] = Way()
        yield Sides(peer, GgufText(model_file(pair.target, "*.gguf")), metrics, serve.process.pid, ways)


def _draft_server(stack: ExitStack, draft: Path, users: int) -> Running:
    """A llama-server with a slot for each user; each contender that asks has one of its own."""
    port = free_port()
    return stack.enter_context(running(command(draft, port, users, CONTEXT), port))


def _linked(stack: ExitStack, profile: str, to: str) -> str:
    """HOST:PORT that leads to `to` over a link."""
    words = ("--profile", profile, "--to", to)
    return stack.enter_context(Process(words, isolated=True, module="lab.testbed.link_relay")).wait_ready()


def exchanged(link: str, folder: Path) -> str:
    """A file of the link with its directions exchanged: what asks over it is a target here, not a device."""
    profile = catalog.link(link)
    rates = {"up_mbit_s": profile.down_mbit_s, "down_mbit_s": profile.up_mbit_s}
    quantities = {name: getattr(profile, name) for name in ("rtt_p50_ms", "rtt_p99_ms", "loss")} | rates
    lines = [f"name = {json.dumps(profile.name)}", f"burst = {profile.burst}"]
    for name, each in quantities.items():
        numbers = f"min = {each.min}, typical = {each.typical}, max = {each.max}"
        lines.append(f"{name} = {{ {numbers}, source = {json.dumps(each.source)} }}")
    path = folder / f"{profile.id}-exchanged.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _device(stack: ExitStack, server: str, drafter: str, drafts: Running | None, model: Path) -> Way:
    words = ["edge", "--server", server, "--threads", "1", "--http", "127.0.0.1:0", *QUIET]
    words += ["--drafter", drafter]
    if drafts:
        words += ["--draft-url", drafts.url]
    elif drafter != "none":
        words += ["--draft-model", str(model)]
    environment = {"OPENSLED_CACHE_DIR": str(cache_folder())}
    device = stack.enter_context(Process(words, isolated=True, environment=environment))
    return Way(device.wait_ready(), (device.process.pid, *([drafts.pid] if drafts else [])))


def warm(sides: Sides, found: Mapping[str, Contender], users: int) -> None:
    """An answer of each contender to each user, which is not counted."""
    for name, contender in found.items():
        turn(sides, name, contender, [Prompt("chat", 0, WARM)] * users, WARM_TOKENS)


def turn(
    sides: Sides, name: str, contender: Contender, prompts: Sequence[Prompt], tokens: int
) -> tuple[list[Any], dict[str, Any]]:
    """What users read who ask at the same time, as ids or text, and what it took.

    `seconds`: of all users together, each from the question to the last token. Steps are forward passes of the target,
    the reading of prompts among them. `cpu_s`: of its process; `draft_cpu_s`: of device and draft server.
    """
    asked = [sides.text.render([ChatMessage("user", prompt.text)]) for prompt in prompts]
    pid, beside = sides.peer.pid if contender.is_peer else sides.pid, sides.ways[name].pids
    before, spent = cpu_s(pid), sum(map(cpu_s, beside))
    if contender.is_peer:
        texts, found = _of_peer(sides, name, contender, asked, tokens)
    else:
        texts, found = asyncio.run(_of_ours(sides, name, prompts, [len(ids) for ids in asked], tokens))
    took = {"cpu_s": cpu_s(pid) - before, "draft_cpu_s": sum(map(cpu_s, beside)) - spent}
    return texts, {**found, **{key: round(value, 2) for key, value in took.items()}}


def _of_peer(
    sides: Sides, name: str, contender: Contender, asked: Sequence[Sequence[int]], tokens: int
) -> tuple[list[Any], dict[str, Any]]:
    found = sides.peer.answers(asked, tokens, contender.block, sides.ways[name].address, contender.together)
    return list(found.texts), {
        "tokens": sum(map(len, found.texts)),
        "seconds": round(found.seconds, 4),
        "steps": found.steps,
        "rounds": found.rounds,
        "round_tokens": found.round_tokens,
        "drafted": found.drafted,
        "accepted": found.accepted,
        "draft_s": round(found.draft_s, 4),
        "texts": [digest(str(text)) for text in found.texts],
    }


async def _of_ours(
    sides: Sides, name: str, prompts: Sequence[Prompt], lengths: Sequence[int], tokens: int
) -> tuple[list[Any], dict[str, Any]]:
    before = scrape(sides.metrics)
    fields = {"temperature": 0, "max_tokens": tokens}
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as http:
        url = f"http://{sides.ways[name].address}"
        await http.get(f"{url}/v1/models")  # the connection is not what is measured
        said = await asyncio.gather(*(ask(http, url, prompt.text, fields) for prompt in prompts))
    between = Between(before, scrape(sides.metrics))
    if [answer.prompt_tokens for answer in said] != list(lengths):
        raise OpenSledError("the device and the peer were not asked the same tokens")
    return [answer.text for answer in said], {
        "tokens": sum(answer.tokens for answer in said),
        "seconds": round(sum(answer.seconds for answer in said), 4),
        "steps": round(between.count("steps_total")),
        "rounds": sum(answer.rounds for answer in said),
        "round_tokens": sum(answer.round_tokens for answer in said),
        "drafted": sum(answer.drafted for answer in said),
        "accepted": sum(answer.accepted for answer in said),
        "texts": [digest(answer.text) for answer in said],
    }
