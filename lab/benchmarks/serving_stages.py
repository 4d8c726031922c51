"""Where the time to a first token goes, and that of each further token: `opensled serve --http`, one user.

    opensled pull smollm2
    python -m lab.benchmarks.serving_stages [--engines llamacpp,torch] [--repeats 20] [--quick] [--out FOLDER]

The server runs in a process of its own, in which some of its functions note the time when they begin and end; client
and server read the same clock. It writes serving_stages.json and serving_stages.md.
"""

from __future__ import annotations

import asyncio
import functools
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from lab.benchmarks.peer_prompts import SHORT, Chats
from lab.benchmarks.program import (
    SPAWN,
    add_quick_and_out,
    exit_code,
    folder_of,
    parser_of,
    say,
    spawned,
    table,
    write_page,
)
from lab.benchmarks.serving import files
from lab.testbed.processes import free_port
from lab.testbed.provenance import provenance
from opensled.models.llama import LlamaModel

TOKENS = 32
# What is measured -> the marks between which it passes. The marks are noted in `_marked`.
FIRST = {
    "HTTP, and reading the request": ("asked", "opening"),
    "rendering and tokenizing the chat": ("opening", "encoded"),
    "admission": ("encoded", "added"),
    "the plan, and the hop to the engine's thread": ("added", "step"),
    "the prompt": ("step", "computed"),
    "sampling": ("computed", "decided"),
    "the hop back, the verdict, HTTP": ("decided", "heard"),
}
EACH = {
    "the step": ("step", "computed"),
    "sampling": ("computed", "decided"),
    "the hops, the plan, the event loop, HTTP": ("decided", "step"),
}
Marks = list[tuple[str, float]]


def _marked(marks: Marks) -> None:
    """Lets the server's functions note when they begin and end."""
    from verify_server.admission.input_processor import InputProcessor
    from verify_server.admission.session_manager import SessionManager
    from verify_server.round import block_target, loop, step

    def note(name: str) -> None:
        marks.append((name, time.perf_counter()))

    opened, encoded, added = SessionManager.open, InputProcessor.prompt_ids, loop.VerifyLoop.add

    @functools.wraps(opened)
    async def open_marked(*args: Any, **options: Any) -> Any:
        note("opening")
        return await opened(*args, **options)

    @functools.wraps(encoded)
    async def encode_marked(*args: Any, **options: Any) -> Any:
        found = await encoded(*args, **options)
        note("encoded")
        return found

    def add_marked(*args: Any) -> None:
        note("added")
        added(*args)

    def computed(forward: Callable[[Any], Any], segments: Any) -> Any:
        found = forward(segments)
        note("computed")
        return found

    def run_marked(engine: Any, work: Any) -> Any:
        note("step")
        if not hasattr(engine, "marked"):
            forward, engine.marked = engine.forward, True
            engine.forward = functools.partial(computed, forward)
        found = step.run_step(engine, work)
        note("decided")
        return found

    patched: Any = {
        (SessionManager, "open"): open_marked,
        (InputProcessor, "prompt_ids"): encode_marked,
        (loop.VerifyLoop, "add"): add_marked,
        (block_target, "run_step"): run_marked,
    }
    for (owner, name), function in patched.items():
        setattr(owner, name, function)


def _serve(ends: Connection, engine: str, model: str, port: int) -> None:
    from verify_server.options.serve_config import ServeConfig
    from verify_server.start import command, startup

    marks: Marks = []
    _marked(marks)
    told: Callable[..., None] = startup.tell_ready

    def ready(*args: Any) -> None:
        told(*args)
        ends.send(None)
        asyncio.get_running_loop().add_reader(ends.fileno(), give)

    def give() -> None:
        ends.recv()
        ends.send(list(marks))
        marks.clear()

    command.tell_ready = ready  # type: ignore[assignment]
    dtype = "bfloat16" if engine == "torch" else "stored"
    http = f"127.0.0.1:{port}"
    command.serve(
        ServeConfig(
            model=model,
            engine=engine,
            dtype=dtype,
            listen="127.0.0.1:0",
            http=http,
            kv_tokens=16384,
            drafter="none",
        )
    )


@contextmanager
def _server(engine: str, model: Path) -> Iterator[tuple[str, Callable[[], Marks]]]:
    """Its address, and what gives the marks since the last call."""
    ours, theirs = SPAWN.Pipe()
    port = free_port()
    process = spawned(_serve, theirs, engine, str(model), port)

    def marks() -> Marks:
        ours.send(None)
        found: Marks = ours.recv()
        return found

    try:
        ours.recv()
        yield f"http://127.0.0.1:{port}", marks
    finally:
        process.terminate()
        process.join(10)
        process.kill()


def measure(engine: str, model: Path, chats: Chats, repeats: int) -> dict[str, Any]:
    """Milliseconds of each stage, medians."""
    first: dict[str, list[float]] = {name: [] for name in FIRST}
    each: dict[str, list[float]] = {name: [] for name in EACH}
    with (
        _server(engine, model) as (url, marks),
        httpx.Client(base_url=url, timeout=600, trust_env=False) as http,
    ):
        for repeat in range(repeats + 2):
            asked, heard = _ask(http, chats)
            noted = [("asked", asked), *marks(), ("heard", heard)]
            if repeat >= 2:
                _add(first, FIRST, noted)
                _add_each(each, noted)
    return {"first": _medians(first), "each": _medians(each)}


def _ask(http: httpx.Client, chats: Chats) -> tuple[float, float]:
    """When a chat was asked, and when its first text came; the answer is read to its end."""
    body = {
        "messages": chats.next(),
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
    }
    asked, heard = time.perf_counter(), 0.0
    with http.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if not heard and '"content":"' in line and '"content":""' not in line:
                heard = time.perf_counter()
    return asked, heard


def _add(found: Mapping[str, list[float]], stages: Mapping[str, tuple[str, str]], noted: Marks) -> None:
    """The first of each mark; a prompt has one step."""
    at: dict[str, float] = {}
    for name, when in noted:
        at.setdefault(name, when)
    for stage, (begin, end) in stages.items():
        found[stage].append(1e3 * (at[end] - at[begin]))


def _add_each(found: Mapping[str, list[float]], noted: Marks) -> None:
    """Of the steps after the first one."""
    steps = [index for index, (name, _) in enumerate(noted) if name == "step"]
    for start, stop in pairwise(steps[1:]):
        at = dict(noted[start:stop])
        found["the step"].append(1e3 * (at["computed"] - at["step"]))
        found["sampling"].append(1e3 * (at["decided"] - at["computed"]))
        found["the hops, the plan, the event loop, HTTP"].append(1e3 * (noted[stop][1] - at["decided"]))


def _medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 3) for name, values in found.items()}


def markdown(document: Mapping[str, Any]) -> str:
    engines = document["engines"]
    parts = []
    for title, key in (("the first token", "first"), ("each further token", "each")):
        names = list(next(iter(engines.values()))[key])
        body = [[name, *[f"{found[key][name]:.2f}" for found in engines.values()]] for name in names]
        body.append(["all", *[f"{sum(found[key].values()):.2f}" for found in engines.values()]])
        parts += [*table((f"{title}, ms", *engines), body), ""]
    return "\n".join(parts)


def run(arguments: Namespace) -> int:
    """Measure, write, and print the tables."""
    engines, models = arguments.engines.split(","), files()
    origin = provenance()
    words = LlamaModel(models["llamacpp"], 0)
    chats = Chats(SHORT, lambda text: len(words.tokenize(text)))
    repeats = 3 if arguments.quick else arguments.repeats
    found = {}
    for engine in engines:
        found[engine] = measure(engine, models[engine], chats, repeats)
        say(f"{engine}: {found[engine]}")
    document = {
        "title": "Where the time to a first token goes, and that of each further token",
        "label": "real",
        "engines": found,
        "provenance": origin,
    }
    if folder := folder_of(arguments):
        write_page(folder, "serving_stages", document, markdown(document))
    print(markdown(document))
    return 0


def main() -> int:
    """The command line."""
    parser = parser_of("serving_stages", __doc__)
    parser.add_argument("--engines", default="llamacpp,torch", help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=20, help="chats of each engine; default %(default)s")
    add_quick_and_out(parser)
    return exit_code(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
