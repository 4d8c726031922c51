"""Tokens/s and the first token of `opensled serve --http`, with the threads that it chooses and with fixed numbers of
them, against llama.cpp's own server, and against plain llama_cpp and transformers for one user.

    opensled pull smollm2
    python -m lab.benchmarks.serving [--engines llamacpp,torch] [--users 1,4,8] [--repeats 5] [--quick] [--out FOLDER]

All engines have the same weights: engine llamacpp, llama-server and llama_cpp the file in 16 bits that is served by
default, engine torch and transformers the same in bfloat16. Contenders answer the same chats in turns, all of them idle
but one; clients share the machine's cores with them. It writes serving.json and serving.md.
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hw_profiles.detect import usable_cores
from lab.benchmarks.peer_chats import Contender
from lab.benchmarks.peer_prompts import SHORT, Chats
from lab.benchmarks.peer_server import running
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_page
from lab.benchmarks.serving_plain import PLAIN, PlainContender, plain
from lab.testbed.processes import Process, free_port
from lab.testbed.provenance import provenance
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file
from verify_server.engine.llamacpp import widened

MODEL, TOKENS = "smollm2", 64
SLOTS, CONTEXT = 8, 2048
PEER = "llama-server"
# What llama-server draws from by default is less than the whole vocabulary.
PEER_WISHES = {"min_p": 0.0}
ANY = Contender | PlainContender


@dataclass
class Cell:
    """What one contender did for some number of users."""

    tokens_per_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0  # of the server, a token

    def told(self) -> dict[str, Any]:
        return {
            "tokens_per_s": [round(each, 2) for each in self.tokens_per_s],
            "first_ms": round(1e3 * statistics.median(self.first_s), 1),
            "slowest_first_ms": round(1e3 * max(self.first_s), 1),
            "cpu_ms": round(self.cpu_ms, 2),
        }


def files() -> dict[str, Path]:
    """Engine -> the file it serves; the one of engine llamacpp is written if it is not there."""
    stored = model_file(MODEL, "*.gguf")
    return {"llamacpp": widened.file_to_serve(stored, widened.F16), "torch": stored}


@contextmanager
def _ours(engine: str, model: Path, threads: int) -> Iterator[tuple[Contender, str]]:
    """A server, and how it says that it computes."""
    port = free_port()
    words = (
        "serve",
        "--engine",
        engine,
        "--model",
        str(model),
        "--listen",
        "127.0.0.1:0",
        "--threads",
        str(threads),
    )
    kv = ("--http", f"127.0.0.1:{port}", "--kv-tokens", str(SLOTS * CONTEXT), "--drafter", "none")
    dtype = ("--dtype", "bfloat16") if engine == "torch" else ("--dtype", "stored")
    with Process((*words, *kv, *dtype), isolated=True) as process:
        process.wait_ready()
        yield Contender(f"http://127.0.0.1:{port}", process.process.pid), _way(port)


def _way(port: int) -> str:
    import httpx

    text = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
    found = next((line for line in text.splitlines() if line.startswith("opensled:engine_info{")), "")
    return found.partition('way="')[2].partition('"')[0]


@contextmanager
def _peer(model: Path, threads: int) -> Iterator[Contender]:
    port = free_port()
    flags = ["--slots", str(SLOTS), "--context", str(CONTEXT), "--threads", str(threads)]
    command = [sys.executable, "-m", "lab.benchmarks.peer_server", str(model), str(port), *flags]
    with running(command, port) as server:
        yield Contender(server.url, server.pid)


def contenders(
    stack: ExitStack, engine: str, models: Mapping[str, Path]
) -> tuple[dict[str, ANY], dict[str, str]]:
    """By name; and how ours say that they compute."""
    counts = sorted({1, usable_cores()})
    found: dict[str, ANY] = {}
    ways: dict[str, str] = {}
    for threads in (0, *counts):
        name = f"OpenSLED, {f'--threads {threads}' if threads else 'as it chooses'}"
        found[name], ways[name] = stack.enter_context(_ours(engine, models[engine], threads))
    for threads in counts:
        if engine == "llamacpp":
            found[f"{PEER}, {threads} threads"] = stack.enter_context(_peer(models[engine], threads))
        found[f"{PLAIN[engine]}, {threads} threads"] = stack.enter_context(
            plain(engine, models[engine], threads, CONTEXT)
        )
    return found, ways


def measure(engine: str, users: Sequence[int], repeats: int) -> dict[str, Any]:
    """All contenders of one engine."""
    models = files()
    words = LlamaModel(models["llamacpp"], 0)
    chats = Chats(SHORT, lambda text: len(words.tokenize(text)))
    with ExitStack() as stack:
        found, ways = contenders(stack, engine, models)
        cells = {str(count): _cells(found, chats, count, repeats) for count in users}
    return {"ways": ways, "users": cells}


def _cells(found: Mapping[str, ANY], chats: Chats, users: int, repeats: int) -> dict[str, Any]:
    """In turns; who begins changes."""
    here = {name: each for name, each in found.items() if users == 1 or isinstance(each, Contender)}
    cells = {name: Cell() for name in here}
    names = list(here)
    for name in names:
        here[name].speed([{"messages": chats.greeting(), "max_tokens": 8, "temperature": 0.0}] * users)
        here[name].forget()
    for repeat in range(repeats):
        body = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0}
        bodies = [{"messages": chats.next(), **body} for _ in range(users)]
        for name in (*names[repeat % len(names) :], *names[: repeat % len(names)]):
            wishes = PEER_WISHES if name.startswith(PEER) else {}
            cells[name].tokens_per_s.append(here[name].speed([{**body, **wishes} for body in bodies]))
    for name, each in here.items():
        cells[name].first_s = list(each.first_s)
        cells[name].cpu_ms = 1e3 * each.cpu_s / max(1, each.tokens)
        say(f"{users} users, {name}: {cells[name].told()}")
    return {name: cell.told() for name, cell in cells.items()}


def rows(document: Mapping[str, Any]) -> Iterator[list[str]]:
    """Of the table: each contender, and how it stands to the best of the others."""
    for engine, found in document["engines"].items():
        for users, cells in found["users"].items():
            others = {name: cell for name, cell in cells.items() if not name.startswith("OpenSLED")}
            best = max((statistics.median(cell["tokens_per_s"]) for cell in others.values()), default=0.0)
            first = min((cell["first_ms"] for cell in others.values()), default=0.0)
            for name, cell in cells.items():
                rate = statistics.median(cell["tokens_per_s"])
                ratios = [
                    f"{rate / best:.2f}" if best else "",
                    f"{cell['first_ms'] / first:.2f}" if first else "",
                ]
                yield [engine, users, name, f"{rate:.1f}", ratios[0], f"{cell['first_ms']:.1f}", ratios[1]]


def markdown(document: Mapping[str, Any]) -> str:
    head = (
        "engine",
        "users",
        "contender",
        "tokens/s",
        "to the best other",
        "first token, ms",
        "to the best other",
    )
    return "\n".join(table(head, list(rows(document))))


def run(arguments: Namespace) -> int:
    """Measure, write, and print the table."""
    engines = arguments.engines.split(",")
    users = [1] if arguments.quick else [int(each) for each in arguments.users.split(",")]
    origin = provenance()
    document = {
        "title": "The server as it chooses, with fixed threads, and others on the same weights",
        "label": "real",
        "tokens": TOKENS,
        "engines": {
            each: measure(each, users, 1 if arguments.quick else arguments.repeats) for each in engines
        },
        "provenance": origin,
    }
    if folder := folder_of(arguments):
        write_page(folder, "serving", document, markdown(document))
    print(markdown(document))
    return 0


def main() -> int:
    """The command line."""
    parser = parser_of("serving", __doc__)
    parser.add_argument("--engines", default="llamacpp,torch", help="default %(default)s")
    parser.add_argument("--users", default="1,4,8", help="who ask at the same time; default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    add_quick_and_out(parser)
    return exit_code(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    raise SystemExit(main())
