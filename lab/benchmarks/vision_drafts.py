"""What early exits bring to answers about pictures: beside the target, which sees, and on a device, which does not.

    python -m lab.benchmarks.vision_drafts --exits FOLDER [--layers 1,2,3,4,5] [--items 5] [--out FOLDER]

tiny-vision on one core, in float32 and level exact, and for each setup a server (or a server and a device) of its own.
Every held-out question goes to all setups in turns, greedy; texts must be equal. FOLDER-N holds the exit behind layer N
(`python -m lab.training.vision exits`). Besides, without any process: how often the draft says what the target
says, if it sees the target's rows of a picture, the same in 8 bits, or no picture.
"""

from __future__ import annotations

import asyncio
import base64
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from lab.benchmarks.program import exit_code, parser_of, say, write_json
from lab.testbed.client import stream_chat
from lab.testbed.processes import QUIET, Process, exit_on_signals, free_port
from lab.testbed.provenance import provenance
from lab.training.vision.evaluate import heldout_questions
from lab.training.vision.questions import Question
from lab.training.vision.scenes import Scene
from lab.training.vision.sight import by_sight
from opensled.core.errors import OpenSledError
from opensled.metrics.scrape import Between, scrape
from opensled.models.store import model_path

TARGET, NONE = "tiny-vision", "none"
FIGURE, TITLE = "vision_drafts", "Early exits behind pictures"
MOST = 64  # tokens of an answer
STEPS = {
    "steps": "steps_total",
    "drafted": "server_draft_tokens_total",
    "accepted": "server_accepted_tokens_total",
}


class Setup(NamedTuple):
    """Who drafts."""

    name: str
    server: tuple[str, ...] = ()  # flags of `opensled serve`
    device: tuple[str, ...] = ()  # flags of `opensled edge`; () = the server is asked itself


class Running(NamedTuple):
    """A setup that is ready."""

    api: str  # HOST:PORT that is asked
    metrics: str  # of the server


def main(words: list[str] | None = None) -> int:
    parser = parser_of(FIGURE, __doc__)
    parser.add_argument(
        "--exits", required=True, metavar="FOLDER", help="FOLDER-N holds the exit behind layer N"
    )
    parser.add_argument("--layers", default="1,2,3,4,5", help="default %(default)s")
    parser.add_argument("--items", type=int, default=5, help="questions of each kind; default %(default)s")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/benchmarks"), help="folder; default %(default)s"
    )
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    exit_on_signals()
    origin = provenance()
    layers = [int(each) for each in arguments.layers.split(",")]
    exits = {each: f"{arguments.exits}-{each}" for each in layers}
    asked = [pair for pairs in heldout_questions(arguments.items).values() for pair in pairs]
    with ExitStack() as stack:
        running = {setup.name: _started(stack, setup) for setup in _setups(exits)}
        turns = asyncio.run(_ask_all(running, asked))
    setups = {name: _summed(turns, name) for name in running}
    sight = {str(number): by_sight(model_path(TARGET), Path(exits[number]), asked) for number in layers}
    document = {
        "figure": FIGURE,
        "title": TITLE,
        "label": "real",
        "provenance": origin,
        "questions": len(asked),
        "setups": setups,
        "sight": sight,
        "turns": turns,
    }
    write_json(arguments.out / f"{FIGURE}.json", document)
    for name, found in setups.items():
        say(f"{name}: {found}")
    say(f"what the exits say that the target says, by what they see: {sight}")
    return 0


def _setups(exits: Mapping[int, str]) -> Iterator[Setup]:
    none = ("--server-drafter", "none")
    yield Setup(NONE, none)
    for layers, folder in exits.items():
        yield Setup(f"exit:{layers}", ("--server-drafter", "exit", "--draft-model", folder))
        yield Setup(f"exit:{layers} without its layer", ("--server-drafter", f"exit:{layers}"))
        yield Setup(
            f"device, text alone, exit:{layers}", none, ("--drafter", "llamacpp", "--draft-model", folder)
        )


def _started(stack: ExitStack, setup: Setup) -> Running:
    http = f"127.0.0.1:{free_port()}"
    serve = ("serve", TARGET, "--engine", "torch", "--dtype", "float32", "--threads", "1", "--json")
    where = ("--listen", "127.0.0.1:0", "--http", http, "--kv-tokens", "4096", "--no-prefix-cache")
    server = stack.enter_context(Process((*serve, *where, *setup.server, *QUIET), isolated=True))
    address = server.wait_ready(600)
    if not setup.device:
        return Running(http, http)
    fixed = ("edge", "--server", address, "--http", "127.0.0.1:0", "--threads", "1")
    edge = stack.enter_context(Process((*fixed, *setup.device, *QUIET), isolated=True))
    return Running(edge.wait_ready(), http)


async def _ask_all(
    running: Mapping[str, Running], asked: Sequence[tuple[Scene, Question]]
) -> list[dict[str, Any]]:
    """One entry for each question, with what each setup did. Raises OpenSledError where a draft changes a text."""
    names = list(running)
    for name in names:
        await _ask(running[name], *asked[0])  # not counted
    turns = []
    for number, (scene, question) in enumerate(asked):
        turned = names[number % len(names) :] + names[: number % len(names)]
        found = {name: await _ask(running[name], scene, question) for name in turned}
        for name, each in found.items():
            if each["text"] != found[NONE]["text"]:
                raise OpenSledError(f"{name} changes the answer to {question.text!r}: {each['text']!r}")
        turns.append({"kind": question.kind, "question": question.text, **found})
    return turns


async def _ask(running: Running, scene: Scene, question: Question) -> dict[str, Any]:
    data = BytesIO()
    scene.image.save(data, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question.text}]
    body = {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": MOST}
    before = scrape(running.metrics)
    async with httpx.AsyncClient(base_url=f"http://{running.api}", timeout=120, trust_env=False) as http:
        reply = [reply async for reply in stream_chat(http, body)][-1]
    between = Between(before, scrape(running.metrics))
    device = {name: reply.usage.get("opensled", {}).get(name, 0) for name in ("drafted", "accepted")}
    counted = {name: round(between.count(metric)) for name, metric in STEPS.items()}
    return {
        "text": reply.text,
        "tokens": reply.usage["completion_tokens"],
        "seconds": round(reply.seconds, 4),
        **counted,
        **{name: counted[name] + device[name] for name in device},
    }


def _summed(turns: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Sums over all questions; `ratio`: of the seconds without drafts to those of this setup."""
    kinds = ("tokens", "seconds", "steps", "drafted", "accepted")
    total = {kind: sum(turn[name][kind] for turn in turns) for kind in kinds}
    plain = sum(turn[NONE]["seconds"] for turn in turns)
    return {
        "tokens_per_step": round(total["tokens"] / total["steps"], 3),
        "accepted_share": round(total["accepted"] / total["drafted"], 3) if total["drafted"] else 0.0,
        "drafted": total["drafted"],
        "seconds": round(total["seconds"], 2),
        "ratio": round(plain / total["seconds"], 3),
    }


if __name__ == "__main__":
    raise SystemExit(main())
