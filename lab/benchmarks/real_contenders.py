"""Who is compared on a real pair: one server, a device for each contender, and one prompt asked of all of them.

Server on core 0, devices on core 1, one thread each. Only the contender that is asked works: each has its core alone.
"""

import hashlib
import os
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from edge_client.link.link import Endpoint, Link
from lab.testbed.client import stream_chat
from lab.testbed.processes import Process
from opensled.core.errors import NotFound, OpenSledError
from opensled.models.store import cache_folder, model_file

SERVER_CORE, DEVICE_CORE = 0, 1
NONE, BOTH, DEFAULT = "none", "none on both cores", "default"
READY_S = 600.0  # to wait for a server at most
WARM = 48  # tokens of a first answer, by which a device learns whether to draft
SELF, DISTILLED = "4-bit self", "distilled"


class Contender(NamedTuple):
    """Flags of `opensled edge`."""

    words: tuple[str, ...]
    draft: str = ""  # SELF or DISTILLED; "" = the model that the device takes by itself, if it wants one


CONTENDERS: Mapping[str, Contender] = {
    NONE: Contender(("--drafter", "none")),
    BOTH: Contender(("--drafter", "none")),  # what the device's core would bring if the server had it
    DEFAULT: Contender(()),
    "tables": Contender(("--drafter", "cacheback")),
    "lookup": Contender(("--drafter", "lookup")),
    DISTILLED: Contender(("--drafter", "llamacpp"), DISTILLED),
    SELF: Contender(("--drafter", "llamacpp"), SELF),
    "chain": Contender(("--drafter", "chain:lookup,cacheback,llamacpp"), DISTILLED),
    "fixed k = 4": Contender(("--stop", "fixed", "--draft-length", "4")),
}

NO_DRAFTER = ("--server-drafter", NONE)  # devices are compared with a server that drafts nothing
# What `opensled serve --model TARGET` is asked for beside that; the default is what a user gets.
SETUPS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "torch": ("--engine", "torch"),
    "torch, fast": ("--engine", "torch", "--numerics", "fast"),
    "torch, bfloat16": ("--engine", "torch", "--dtype", "bfloat16", "--numerics", "fast"),
    "llamacpp": ("--engine", "llamacpp"),
}
SAMPLINGS: Mapping[str, Mapping[str, float]] = {"greedy": {"temperature": 0}, "T = 0.8": {"temperature": 0.8}}


class Answer(NamedTuple):
    """One answer, read by its user."""

    text: str
    tokens: int
    seconds: float  # from the request to the last token, the reading of the prompt included
    first_s: float  # of them, to the first text
    rounds: int
    round_tokens: int  # that those rounds committed
    drafted: int
    accepted: int
    prompt_tokens: int


def add_models(parser: ArgumentParser) -> None:
    """The options that name the pair."""
    add = parser.add_argument
    add("--target", default="smollm2", help="model that the server verifies with; default %(default)s")
    add("--distilled", default="smollm2-draft", help="distilled draft, GGUF; default %(default)s")


def draft_models(target: str, given: Mapping[str, str]) -> dict[str, Path]:
    """The GGUF files of SELF and DISTILLED that are on this machine; `given`: a name or a path of each, "" = none."""
    found = {}
    for name, model in {SELF: target, **{name: model for name, model in given.items() if model}}.items():
        try:
            found[name] = model_file(model, "*.gguf")
        except NotFound:
            continue
    return found


def told_file(path: Path) -> str:
    """Its name and the beginning of its digest, by which a draft that was trained on differs."""
    with path.open("rb") as file:
        return f"{path.name} ({hashlib.file_digest(file, 'sha256').hexdigest()[:8]})"


class Started(NamedTuple):
    """Processes that are ready."""

    server: str  # HOST:PORT of the one on its core
    urls: dict[str, str]  # base URL of each contender's API


def start(
    stack: ExitStack, target: str, setup: str, names: Sequence[str], drafts: Mapping[str, Path]
) -> Started:
    """The servers, and a device for each contender."""
    cores = {SERVER_CORE, DEVICE_CORE}
    both = {BOTH: serving(stack, target, setup, cores, NO_DRAFTER)} if BOTH in names else {}
    server = serve(stack, target, setup, {SERVER_CORE})
    servers = {name: process.wait_ready(READY_S) for name, process in both.items()}
    os.sched_setaffinity(0, {DEVICE_CORE})  # what is started from here on inherits it
    started = {
        name: stack.enter_context(_edge(servers.get(name, server), CONTENDERS[name], drafts))
        for name in names
    }
    return Started(server, {name: f"http://{edge.wait_ready()}" for name, edge in started.items()})


def serve(stack: ExitStack, target: str, setup: str, cores: set[int]) -> str:
    """Address of a server with a thread on each of `cores`, once it is ready."""
    return serving(stack, target, setup, cores, NO_DRAFTER).wait_ready(READY_S)


def serving(
    stack: ExitStack,
    target: str,
    setup: str,
    cores: set[int],
    more: Sequence[str],
) -> Process:
    """Such a server as it starts, with `more` options; it keeps no prefixes, for each turn is a new user's."""
    threads = str(len(cores))
    words = ("serve", "--model", target, *SETUPS[setup], "--threads", threads, "--listen", "127.0.0.1:0")
    os.sched_setaffinity(0, cores)
    environment = {"OMP_NUM_THREADS": threads, **_cache()}
    command = (*words, "--no-prefix-cache", *more)
    return stack.enter_context(Process(command, isolated=True, environment=environment))


def _edge(server: str, contender: Contender, drafts: Mapping[str, Path]) -> Process:
    model = ("--draft-model", str(drafts[contender.draft])) if contender.draft else ()
    fixed = ("--server", server, "--threads", "1", "--http", "127.0.0.1:0")
    words = ("edge", *fixed, *model, *contender.words)
    return Process(words, isolated=True, environment=_cache())


def _cache() -> dict[str, str]:
    return {"OPENSLED_CACHE_DIR": str(cache_folder())}


async def level(server: str) -> str:
    """Of its numerics: at level exact no text depends on drafts."""
    link = Link(Endpoint(server))
    try:
        return (await link.describe()).numerics
    finally:
        await link.close()


async def warm(http: httpx.AsyncClient, urls: Mapping[str, str]) -> None:
    """One answer of each, which is not counted."""
    for url in urls.values():
        await ask(http, url, "Tell me about the sea.", {"temperature": 0, "max_tokens": WARM})


async def ask(http: httpx.AsyncClient, url: str, prompt: str, more: Mapping[str, Any]) -> Answer:
    """One prompt; `more`: fields of the request."""
    http.base_url = httpx.URL(url)
    first = 0.0
    async for reply in stream_chat(http, {"messages": [{"role": "user", "content": prompt}], **more}):
        if reply.text and not first:
            first = reply.seconds
    usage = reply.usage
    told = usage["opensled"]
    if told["local_tokens"]:
        raise OpenSledError("the device wrote without its server; this machine is too busy to be measured")
    return Answer(
        reply.text,
        usage["completion_tokens"],
        round(reply.seconds, 4),
        round(first, 4),
        told["rounds"],
        round(told["rounds"] * told["tokens_per_round"]),
        told["drafted"],
        told["accepted"],
        usage["prompt_tokens"],
    )


def available(names: Sequence[str], drafts: Mapping[str, Path]) -> Iterator[str]:
    """Those of `names` whose model is on this machine."""
    return (name for name in names if CONTENDERS[name].draft in {"", *drafts})
