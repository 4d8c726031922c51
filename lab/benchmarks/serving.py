"""Tokens/s and the first token of `opensled serve --http` as it comes and without drafts, against llama.cpp's own
server without drafts and with those of its own, and against plain llama_cpp and transformers for one user.

    opensled pull smollm2
    python -m lab.benchmarks.serving [--engines llamacpp,torch] [--users 1,4,8] [--repeats 5] [--quick] [--out FOLDER]

All engines have the same weights: engine llamacpp, llama-server and llama_cpp the file in 16 bits that is served by
default, engine torch and transformers the same in bfloat16. Prompts are of six kinds of text, another one for each user
of a turn. Contenders answer them greedily in turns, all of them idle but one; each has all cores, and clients share
them. It writes serving.json and serving.md.
"""

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
from lab.benchmarks.peer_server import require, running
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_page
from lab.benchmarks.real_texts import KINDS, prompts
from lab.benchmarks.serving_plain import PLAIN, PlainContender, plain
from lab.testbed.processes import Process, free_port
from lab.testbed.provenance import provenance
from opensled.core.errors import UsageError
from opensled.models import widened
from opensled.models.store import model_file

MODEL, TOKENS = "smollm2", 64
SLOTS, CONTEXT = 8, 2048
CHARACTERS = 600  # of what a prompt quotes
OURS, OURS_ALONE, PEER = "OpenSLED", "OpenSLED, no drafts", "llama-server"
DRAFT = "smollm2-draft"
NGRAMS = ("ngram_simple", "ngram_mod")  # drafts of llama-server without a model
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
    return {"llamacpp": widened.file_to_run(stored, widened.F16), "torch": stored}


@contextmanager
def _ours(engine: str, model: Path, *more: str) -> Iterator[Contender]:
    """A server; `more`: of its options."""
    port = free_port()
    words = ("serve", "--engine", engine, "--model", str(model), "--listen", "127.0.0.1:0")
    kv = ("--http", f"127.0.0.1:{port}", "--kv-tokens", str(SLOTS * CONTEXT))
    dtype = ("--dtype", "bfloat16") if engine == "torch" else ("--dtype", "stored")
    with Process((*words, *kv, *dtype, *more), isolated=True) as process:
        process.wait_ready()
        yield Contender(f"http://127.0.0.1:{port}", process.process.pid)


@contextmanager
def _peer(model: Path, *more: str) -> Iterator[Contender]:
    port = free_port()
    flags = ("--slots", str(SLOTS), "--context", str(CONTEXT), "--threads", str(usable_cores()), *more)
    command = [sys.executable, "-m", "lab.benchmarks.peer_server", str(model), str(port), *flags]
    with running(command, port) as server:
        yield Contender(server.url, server.pid)


def contenders(stack: ExitStack, engine: str, models: Mapping[str, Path]) -> dict[str, ANY]:
    """By name."""
    model, enter = models[engine], stack.enter_context
    found: dict[str, ANY] = {
        OURS_ALONE: enter(_ours(engine, model, "--server-drafter", "none")),
        OURS: enter(_ours(engine, model)),
        PLAIN[engine]: enter(plain(engine, model, usable_cores(), CONTEXT)),
    }
    if engine == "llamacpp":
        found[PEER] = enter(_peer(model))
        for kind in NGRAMS:
            found[f"{PEER}, {kind}"] = enter(_peer(model, "--speculative", kind))
        draft = model_file(DRAFT, "*.gguf")
        found[f"{PEER}, draft model"] = enter(_peer(model, "--draft-model", str(draft)))
    return found


def measure(engine: str, users: Sequence[int], repeats: int) -> dict[str, Any]:
    """All contenders of one engine."""
    with ExitStack() as stack:
        found, chats = contenders(stack, engine, files()), questions()
        cells = {str(count): _cells(found, chats, count, repeats) for count in users}
    return {"users": cells, "ratios": {count: _ratios(each) for count, each in cells.items()}}


def questions() -> Iterator[list[dict[str, str]]]:
    """Chats that no server has seen before, one kind of text after the other: 72."""
    for row in zip(*(prompts(kind, CHARACTERS) for kind in KINDS)):
        yield from ([{"role": "user", "content": prompt.text}] for prompt in row)


def _cells(
    found: Mapping[str, ANY], chats: Iterator[list[dict[str, str]]], users: int, repeats: int
) -> dict[str, Any]:
    """In turns; who begins changes."""
    here = {name: each for name, each in found.items() if users == 1 or isinstance(each, Contender)}
    cells = {name: Cell() for name in here}
    names = list(here)
    for name in names:
        greeting = [{"role": "user", "content": "Hello!"}]
        here[name].speed([{"messages": greeting, "max_tokens": 8, "temperature": 0.0}] * users)
        here[name].forget()
    for repeat in range(repeats):
        body = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0}
        bodies = [{"messages": next(chats), **body} for _ in range(users)]
        for name in (*names[repeat % len(names) :], *names[: repeat % len(names)]):
            wishes = PEER_WISHES if name.startswith(PEER) else {}
            cells[name].tokens_per_s.append(here[name].speed([{**body, **wishes} for body in bodies]))
    for name, each in here.items():
        cells[name].first_s = list(each.first_s)
        cells[name].cpu_ms = 1e3 * each.cpu_s / max(1, each.tokens)
        say(f"{users} users, {name}: {cells[name].told()}")
    return {name: cell.told() for name, cell in cells.items()}


def _ratios(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tokens/s over those of each other contender, turn by turn: median, lowest and highest."""
    found = {}
    for ours in (OURS_ALONE, OURS):
        for other, cell in cells.items():
            if other not in (OURS, ours):
                turns = [a / b for a, b in zip(cells[ours]["tokens_per_s"], cell["tokens_per_s"])]
                found[f"{ours} over {other}"] = {
                    "ratio": round(statistics.median(turns), 3),
                    "lowest": round(min(turns), 3),
                    "highest": round(max(turns), 3),
                }
    return found


def rows(document: Mapping[str, Any]) -> Iterator[list[str]]:
    """Of the table: each contender, and how ours stand to it."""
    for engine, found in document["engines"].items():
        for users, cells in found["users"].items():
            for name, cell in cells.items():
                told = [
                    f"{each['ratio']:.2f} ({each['lowest']:.2f} to {each['highest']:.2f})" if each else ""
                    for ours in (OURS_ALONE, OURS)
                    for each in (found["ratios"][users].get(f"{ours} over {name}"),)
                ]
                rate = statistics.median(cell["tokens_per_s"])
                yield [engine, users, name, f"{rate:.1f}", f"{cell['first_ms']:.1f}", *told]


def markdown(document: Mapping[str, Any]) -> str:
    head = (
        "engine",
        "users",
        "contender",
        "tokens/s",
        "first token, ms",
        "ours without drafts over it",
        "ours",
    )
    return "\n".join(table(head, list(rows(document))))


def run(arguments: Namespace) -> int:
    """Measure, write, and print the table."""
    engines = arguments.engines.split(",")
    users = [1] if arguments.quick else [int(each) for each in arguments.users.split(",")]
    repeats = 1 if arguments.quick else arguments.repeats
    if repeats * sum(users) > (most := len(list(questions()))):
        raise UsageError(f"there are {most} prompts, and none is asked twice: fewer --users or --repeats")
    if "llamacpp" in engines:
        require()
    origin = provenance()
    document = {
        "title": "The server as it comes, and others on the same weights",
        "label": "real",
        "tokens": TOKENS,
        "engines": {each: measure(each, users, repeats) for each in engines},
        "provenance": origin,
    }
    if folder := folder_of(arguments):
        write_page(folder, "serving", document, markdown(document))
    print(markdown(document))
    return 0


def main(words: list[str] | None = None) -> int:
    """The command line."""
    parser = parser_of("serving", __doc__)
    parser.add_argument("--engines", default="llamacpp,torch", help="default %(default)s")
    parser.add_argument("--users", default="1,4,8", help="who ask at the same time; default %(default)s")
    parser.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    add_quick_and_out(parser)
    return exit_code(lambda: run(parser.parse_args(words)))


if __name__ == "__main__":
    raise SystemExit(main())
