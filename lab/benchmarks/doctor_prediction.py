"""What `opensled doctor` foretells against what users then get, on several set-ups of the tiny and of a real target.

    python -m lab.benchmarks.doctor_prediction [--target MODEL --draft MODEL] [--quick] [--out FOLDER]

For each set-up: one server on core 0; on core 1 the doctor first, then `opensled edge`, asked over HTTP prompts that
are none of the doctor's. The tiny target is asked its held-out tasks, the real one the prompts of real_prompts.json,
their quotations cut short. Rates count from the first text of an answer to its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from lab.benchmarks.doctor_view import document, view
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, write_json
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_texts import KINDS, prompts
from lab.testbed.client import stream_chat
from lab.testbed.processes import Process
from lab.testbed.prompts import Chat, heldout
from lab.testbed.provenance import SEED, provenance
from opensled.core.errors import OpenSledError

SERVER_CORE, DEVICE_CORE = 0, 1
CHARACTERS = 600  # of a text that a prompt of the real target quotes
TOKENS = 96  # of an answer, at most
EACH_REAL, EACH_TINY = 2, 6  # prompts of each kind: a real answer takes seconds
DELAY_MS = 50
_EXACTLY = '{{ min = {0}, typical = {0}, max = {0}, source = "chosen" }}'
LINK = "\n".join(
    (
        f'name = "{DELAY_MS} ms there and back"',
        "burst = 1",
        *(f"{key} = {_EXACTLY.format(DELAY_MS)}" for key in ("rtt_p50_ms", "rtt_p99_ms")),
        f"loss = {_EXACTLY.format(0)}",
        *(f"{key} = {_EXACTLY.format(100)}" for key in ("up_mbit_s", "down_mbit_s")),
    )
)


TASKS = ("stories", "descriptions", "howto", "dialogue", "smart_home", "code_chat")
Timed = dict[str, float]


class Prompt(NamedTuple):
    """What is asked."""

    kind: str  # of text
    messages: Chat


class Setup(NamedTuple):
    """One server and one device."""

    serve: tuple[str, ...]
    device: tuple[str, ...]
    delayed: bool = False  # behind a link of DELAY_MS

    @property
    def is_tiny(self) -> bool:
        return "tiny" in self.serve


TORCH = ("--engine", "torch", "--dtype", "float32", "--model")
TARGET, DRAFT = "TARGET", "DRAFT"  # replaced by the models given
SETUPS: Mapping[str, Setup] = {
    "tiny, torch; llama.cpp draft and table": Setup((*TORCH, "tiny"), ("--draft-model", "tiny-draft")),
    "tiny, torch; ONNX draft": Setup((*TORCH, "tiny"), ("--draft-model", "tiny-draft", "--drafter", "onnx")),
    "real, torch; lookup": Setup((*TORCH, TARGET), ("--drafter", "lookup")),
    "real, torch; draft model": Setup((*TORCH, TARGET), ("--draft-model", DRAFT)),
    f"real, torch; draft model, {DELAY_MS} ms": Setup(
        (*TORCH, TARGET), ("--draft-model", DRAFT), delayed=True
    ),
    "real, llama.cpp; lookup": Setup(("--engine", "llamacpp", "--model", TARGET), ("--drafter", "lookup")),
}


def main(words: list[str] | None = None) -> int:
    parser = parser_of("doctor_prediction", __doc__)
    parser.add_argument("--target", help="real target, a name or a GGUF file; without it the tiny one alone")
    parser.add_argument("--draft", help="draft model for it; default: the target itself")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    out = folder_of(arguments)
    origin = provenance()
    found: dict[str, Any] = {}
    for name, setup in SETUPS.items():
        if setup.is_tiny or arguments.target:
            say(f"== {name}")
            found[name] = _examined(setup, arguments)
            say(view(found[name]))
    if out:
        path = out / "doctor.json"
        pair = f"{arguments.target}, drafted by {arguments.draft or 'itself'}" if arguments.target else "none"
        write_json(path, document(found, pair, origin))
        print(f"written: {path} and {write_readme(out)}")
    return 0


def _examined(setup: Setup, arguments: Namespace) -> dict[str, Any]:
    """What the doctor foretold, and what came, by kind of text."""
    models = {TARGET: arguments.target, DRAFT: arguments.draft or arguments.target}
    serve, device = ([models.get(word) or word for word in words] for words in (setup.serve, setup.device))
    with _served(serve, setup.delayed) as server:
        device += ["--server", server, "--threads", "1"]
        foretold = _doctor(device)
        with Process(("edge", *device, "--http", "127.0.0.1:0"), isolated=True) as edge:
            url = f"http://{edge.wait_ready()}"
            answers = asyncio.run(_ask_all(url, _prompts(setup, arguments.quick)))
    return {"predicted": foretold, "measured": answers}


@contextmanager
def _served(words: list[str], delayed: bool) -> Iterator[str]:
    """HOST:PORT of a server on its core; from then on all that is started is on the device's core."""
    os.sched_setaffinity(0, {SERVER_CORE})
    fixed = ("--threads", "1", "--listen", "127.0.0.1:0", "--no-prefix-cache", "--drafter", "none")
    serve = ("serve", *words, *fixed)
    with Process(serve, isolated=True, environment={"OMP_NUM_THREADS": "1"}) as process:
        address = process.wait_ready(600)
        os.sched_setaffinity(0, {DEVICE_CORE})
        if not delayed:
            yield address
            return
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "link.toml"
            profile.write_text(LINK)
            flags = ("--profile", str(profile), "--to", address, "--seed", str(SEED))
            with Process(flags, isolated=True, module="lab.testbed.link_relay") as relay:
                yield relay.wait_ready()


def _doctor(device: list[str]) -> dict[str, Any]:
    """Its prediction, and how long it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "opensled", "doctor", "--json", *device]
    environment = {**os.environ, "OPENSLED_NO_CONFIG": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    told = json.loads(done.stdout or "{}")
    if not told.get("prediction"):
        raise OpenSledError(f"the doctor foretells nothing: {told.get('findings') or done.stderr}")
    prediction: dict[str, Any] = told["prediction"]
    return {**prediction, "doctor_s": round(time.monotonic() - started, 1)}


def _prompts(setup: Setup, quick: bool) -> list[Prompt]:
    """The prompts, the kinds in turns."""
    kinds = _tiny_prompts() if setup.is_tiny else _real_prompts()
    each = 1 if quick else EACH_TINY if setup.is_tiny else EACH_REAL
    return [Prompt(kind, texts[number]) for number in range(each) for kind, texts in kinds.items()]


def _tiny_prompts() -> dict[str, list[Chat]]:
    """The held-out chats of each task whose answers are long enough to be timed."""
    return {task: [line["messages"] for line in heldout() if line["task"] == task] for task in TASKS}


def _real_prompts() -> dict[str, list[Chat]]:
    return {
        kind: [[{"role": "user", "content": prompt.text}] for prompt in prompts(kind, CHARACTERS)]
        for kind in KINDS
    }


async def _ask_all(url: str, prompts: Sequence[Prompt]) -> dict[str, list[Timed]]:
    """The answers by kind of text; one before them only warms up."""
    found: dict[str, list[Timed]] = {}
    async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http:
        await _ask(http, [{"role": "user", "content": "Good morning! What can you do?"}])
        for kind, messages in prompts:
            found.setdefault(kind, []).append(await _ask(http, messages))
    return found


async def _ask(http: httpx.AsyncClient, messages: Chat) -> Timed:
    """Tokens after the first text of a greedy answer, and seconds."""
    first = ended = 0.0
    async for reply in stream_chat(http, {"messages": messages, "max_tokens": TOKENS, "temperature": 0}):
        if reply.text and not first:
            first = reply.seconds
        if reply.finish_reason and not reply.usage:
            ended = reply.seconds
    return {
        "tokens": reply.usage["completion_tokens"] - 1,
        "seconds": round(ended - first, 4),
        "first_s": round(first, 4),
        **{name: reply.usage["opensled"][name] for name in ("rounds", "drafted", "accepted")},
    }


if __name__ == "__main__":
    sys.exit(main())
