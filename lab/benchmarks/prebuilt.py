"""Drafter `llamacpp` with both packages that bring llama.cpp, built and prebuilt: speed, and how many drafts stand.

    python -m lab.benchmarks.prebuilt [--quick] [--out FOLDER]

Each package has a process of its own; they take turns on one core, and the server has another one.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from edge_client.device.device import Device
from edge_client.device.served_target import fetch_target
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterFactory
from edge_client.lengths.fixed import FixedLength
from edge_client.link.link import Endpoint, Link
from lab.benchmarks.cacheback import ask
from lab.benchmarks.program import (
    CORES,
    FOLDER,
    SPAWN,
    add_quick_and_out,
    end_with_parent,
    exit_code,
    folder_of,
    parser_of,
    pinned,
    say,
    table,
    write_page,
)
from lab.testbed.processes import Process
from lab.testbed.prompts import heldout, messages_of
from lab.testbed.provenance import provenance
from opensled.core.answer import Task
from opensled.core.errors import OpenSledError
from opensled.core.messages import MATCH, ChatMessage, Prompt, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import Sampler
from opensled.models import llama_api
from opensled.models.llama_api import BUILT, PREBUILT
from opensled.models.store import cache_folder, is_here

COMMAND = "python -m lab.benchmarks.prebuilt"
SPEEDS, ANSWERS = PARTS = ("speeds", "answers")
PACKAGES = (BUILT, PREBUILT)
DRAFT_CORE, SERVER_CORE = min(CORES), max(CORES)
TEMPERATURES = (0.0, 0.8)
PROMPTS = Path(__file__).with_name("real_prompts.json")
KINDS = ("chat", "questions", "arithmetic", "translation")
TASKS = ("arithmetic", "code_chat", "smart_home", "chat")
LENGTH = 4  # of a draft
CONTEXT = 128  # tokens before the first draft token that is timed
SEED = 1


class Pair(NamedTuple):
    """A target and the model that drafts for it."""

    target: str
    draft: str
    prompts: Sequence[Prompt]


def pairs(count: int) -> Iterator[Pair]:
    """The tiny family; SmolLM2 and its own 4-bit file, where it was fetched. `count`: prompts of each kind."""
    chats = {task: [item["messages"] for item in heldout() if item["task"] == task] for task in TASKS}
    yield Pair("tiny", "tiny-draft", [messages_of(chat) for task in TASKS for chat in chats[task][:count]])
    if is_here("smollm2"):
        asked = json.loads(PROMPTS.read_text())
        real = [(ChatMessage("user", item["ask"]),) for kind in KINDS for item in asked[kind][:count]]
        yield Pair("smollm2", "smollm2", real)


class Answered(NamedTuple):
    """One answer: its tokens, and what became of the drafts."""

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    per_round: float  # tokens that a step of the target brought


def main(words: list[str] | None = None) -> int:
    parser = parser_of("prebuilt", __doc__)
    parser.add_argument("--only", choices=PARTS, help="this part; the other one stays as the file has it")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _run(arguments))


def _run(arguments: Namespace) -> int:
    out = folder_of(arguments)
    path = (out or FOLDER) / "prebuilt.json"
    before = json.loads(path.read_text()) if arguments.only and path.exists() else {}
    document = {**before, **measured([arguments.only] if arguments.only else PARTS, arguments.quick)}
    print(body := page(document))
    if out:
        write_page(out, "prebuilt", document, body)
        print(f"written: {path} and {path.with_suffix('.md')}")
    return 0


def measured(parts: Sequence[str], quick: bool) -> dict[str, Any]:
    """What both packages did, in turns; each part says where it comes from."""
    origin = provenance(COMMAND)
    repeats, tokens, count, max_tokens = (2, 16, 1, 16) if quick else (9, 64, 4, 64)
    found: dict[str, Any] = {part: {"provenance": origin, "pairs": []} for part in parts}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(_worker(name)) for name in PACKAGES}
        builds = {name: worker.submit(_build).result() for name, worker in workers.items()}
        for pair in pairs(count):
            for part in parts:
                say(f"{pair.draft} drafts for {pair.target}: {part}")
                work = (
                    _speeds(workers, pair.draft, repeats, tokens)
                    if part == SPEEDS
                    else _answers(workers, pair, max_tokens)
                )
                found[part]["pairs"].append({"target": pair.target, "draft": pair.draft, "measured": work})
    return {
        "title": "Drafting with llama.cpp, built and prebuilt",
        "label": "real",
        "provenance": origin,
        "packages": builds,
        "length": LENGTH,
        **found,
    }


def _worker(package: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=SPAWN, initializer=_begin_worker, initargs=(package,))


def _begin_worker(package: str) -> None:
    """In the process of that package: before anything of llama.cpp is imported."""
    end_with_parent()
    os.sched_setaffinity(0, {DRAFT_CORE})
    if package == PREBUILT:
        sys.modules[BUILT] = None  # type: ignore[assignment]
    assert llama_api.package() == package


def _build() -> str:
    from edge_client.drafters.llamacpp import build

    distribution = {BUILT: "llama-cpp-python", PREBUILT: PREBUILT}[llama_api.package()]
    return f"{distribution} {metadata.version(distribution)}: {build()[0].strip(' |')}"


def _speeds(
    workers: Mapping[str, ProcessPoolExecutor], model: str, repeats: int, tokens: int
) -> dict[str, dict[str, list[float]]]:
    """Temperature -> package -> draft tokens/s of each repeat; a turn before them warms up."""
    speeds: dict[str, dict[str, list[float]]] = {
        str(each): {name: [] for name in workers} for each in TEMPERATURES
    }
    for turn in range(repeats + 1):
        for temperature in TEMPERATURES:
            for name, worker in workers.items():
                rate = worker.submit(_rate, model, temperature, tokens).result()
                if turn:
                    speeds[str(temperature)][name].append(round(rate, 2))
    return speeds


def _rate(model: str, temperature: float, tokens: int) -> float:
    """Draft tokens behind a text that was read, per second of processor time: work beside it counts little."""
    drafter, sampler = _factory(model).create(), Sampler(SamplingParams(temperature), noise_key(SEED))
    try:
        drafter.begin([1 + index * 7 % 500 for index in range(CONTEXT)], sampler)
        proposals = drafter.propose()
        next(proposals)
        started = time.thread_time()
        made = sum(1 for _ in islice(proposals, tokens))
        return made / (time.thread_time() - started)
    finally:
        drafter.close()


@cache
def _factory(model: str) -> DrafterFactory:
    factory: DrafterFactory = DRAFTERS.get("llamacpp")(model, 1)
    return factory


def _answers(
    workers: Mapping[str, ProcessPoolExecutor], pair: Pair, max_tokens: int
) -> dict[str, dict[str, list[Answered]]]:
    """Temperature -> package -> an answer to each prompt. Raises OpenSledError where texts differ."""
    words = (
        *("serve", "--model", pair.target, "--engine", "torch", "--dtype", "float32", "--threads", "1"),
        *("--listen", "127.0.0.1:0", "--policy", "fcfs", "--draft-wait", "inf"),
    )
    fetched = {"OPENSLED_CACHE_DIR": str(cache_folder())}
    found: dict[str, dict[str, list[Answered]]] = {}
    with pinned(SERVER_CORE), Process(words, isolated=True, environment=fetched) as server:
        address = server.wait_ready()
        for temperature in TEMPERATURES:
            params = SamplingParams(temperature, seed=SEED, max_tokens=max_tokens)
            asked = {
                name: worker.submit(_ask_all, address, pair, params).result()
                for name, worker in workers.items()
            }
            texts = {name: [each.tokens for each in answers] for name, answers in asked.items()}
            if texts[BUILT] != texts[PREBUILT]:
                raise OpenSledError(f"drafts have changed an answer of {pair.target} at T = {temperature}")
            found[str(temperature)] = asked
    return found


def _ask_all(address: str, pair: Pair, params: SamplingParams) -> list[Answered]:
    return asyncio.run(_asked(address, pair, params))


async def _asked(address: str, pair: Pair, params: SamplingParams) -> list[Answered]:
    link, factory = Link(Endpoint(address)), _factory(pair.draft)
    target = await fetch_target(link, MATCH, factory, None)
    device = Device(link, target.info, target.tokenizer, factory, FixedLength(LENGTH))
    try:
        answers = [await ask(device, Task(prompt, params)) for prompt in pair.prompts]
    finally:
        await device.close()
    return [
        Answered(each.tokens, each.stats.drafted, each.stats.accepted, each.per_round) for each in answers
    ]


def page(document: Mapping[str, Any]) -> str:
    """Tables in Markdown."""
    lines = [f"- {each}" for each in document["packages"].values()]
    if SPEEDS in document:
        head = ("pair, temperature", *(f"{name}: tokens/s" for name in PACKAGES), "ratio")
        lines += ["", _SPEEDS_ARE, "", *table(head, list(_speed_rows(document[SPEEDS]["pairs"])))]
    if ANSWERS in document:
        shares, rounds = ([f"{name}: {what}" for name in PACKAGES] for what in ("accepted", "tokens/round"))
        rows = list(_answer_rows(document[ANSWERS]["pairs"]))
        said = f"Answers with drafts of {document['length']} tokens; both packages wrote the same texts."
        lines += ["", said, "", *table(("pair, temperature", *shares, "points", *rounds), rows)]
    return "\n".join(lines)


_SPEEDS_ARE = (
    "Draft tokens in a second of processor time, by one thread, both packages on the same core in turns: medians with "
    "their ranges."
)


def _speed_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for pair in found:
        for temperature, speeds in pair["measured"].items():
            middle = {name: statistics.median(speeds[name]) for name in PACKAGES}
            ranges = {name: f"{min(speeds[name]):.1f} to {max(speeds[name]):.1f}" for name in PACKAGES}
            cells = (f"{middle[name]:.1f} ({ranges[name]})" for name in PACKAGES)
            yield (_named(pair, temperature), *cells, f"{middle[PREBUILT] / middle[BUILT]:.2f}")


def _answer_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for pair in found:
        for temperature, asked in pair["measured"].items():
            shares = {name: _share(asked[name]) for name in PACKAGES}
            rounds = (f"{statistics.mean(each[3] for each in asked[name]):.2f}" for name in PACKAGES)
            cells = (f"{shares[name]:.1%}" for name in PACKAGES)
            points = f"{100 * (shares[PREBUILT] - shares[BUILT]):+.1f}"
            yield (_named(pair, temperature), *cells, points, *rounds)


def _named(pair: Mapping[str, Any], temperature: str) -> str:
    return f"{pair['draft']} for {pair['target']}, T = {float(temperature):g}"


def _share(answers: Sequence[Answered]) -> float:
    """Of all draft tokens, those that were accepted."""
    return sum(each[2] for each in answers) / sum(each[1] for each in answers)


if __name__ == "__main__":
    sys.exit(main())
