"""What drafts bring on a real pair and real prompts: the default against no drafts, by kind of text.

    python -m benchmarks.real_prompts --target FOLDER --draft FILE.gguf [--quick] [--kinds chat,...] [--keep]

One server on core 0, one `opensled edge` for each contender on core 1, and a second server on both cores; every prompt
goes to all of them in turns, and all must write the same text. The server's prefix cache is off: each turn reads its
prompt anew, as a new user's does.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import os
import random
import statistics
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.figure import Comparison, Figure
from benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, write_json
from benchmarks.readme import table, write_readme
from opensled.errors import OpenSledError, UsageError
from opensled_testbed.client import stream_chat
from opensled_testbed.processes import Process
from opensled_testbed.provenance import SEED, provenance

PROMPTS = Path(__file__).with_suffix(".json")
KINDS = ("chat", "translation", "summary", "questions", "arithmetic", "retrieval")
NONE, BOTH, DEFAULT = "none", "none on both cores", "default"
CONTENDERS: Mapping[str, tuple[str, ...]] = {
    NONE: ("--drafter", "none"),
    BOTH: ("--drafter", "none"),  # what the device's core would bring if the server had it
    DEFAULT: (),
    "fixed k = 4": ("--stop", "fixed", "--draft-length", "4"),
    "tables": ("--drafter", "cacheback"),
    "lookup": ("--drafter", "lookup"),
    "draft model": ("--drafter", "llamacpp"),
}
SERVER_CORE, DEVICE_CORE = 0, 1
REQUIRED = 0.97  # of no drafts, in any kind of text
RESAMPLES = 2000  # of the bootstrap

Speeds = dict[str, list[float]]  # "kind, contender" -> tokens/s of each prompt


def main(words: list[str] | None = None) -> int:
    parser = parser_of("real_prompts", __doc__)
    parser.add_argument("--target", required=True, help="model that the server verifies with")
    parser.add_argument("--draft", required=True, help="draft model of the devices, GGUF")
    parser.add_argument("--engine", default="torch", help="default %(default)s")
    parser.add_argument("--dtype", default="float32", help="default %(default)s")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default %(default)s")
    parser.add_argument("--contenders", help=f"of {', '.join(CONTENDERS)}; default all, with --quick two")
    parser.add_argument("--prompts", type=int, help="of each kind; default 10, with --quick 1")
    parser.add_argument("--skip", type=int, default=0, help="prompts of each kind to leave out first")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer; default %(default)s")
    parser.add_argument(
        "--keep", action="store_true", help="keep what the file has of other prompts: pieces of a run"
    )
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    contenders = _chosen(arguments.contenders or f"{NONE},{DEFAULT}", CONTENDERS)
    if not arguments.contenders and not arguments.quick:
        contenders = list(CONTENDERS)
    origin = provenance("python -m benchmarks.real_prompts")
    out = folder_of(arguments)
    path = out / "real_prompts.json" if out else None
    before: Speeds = (
        json.loads(path.read_text())["samples"] if path and arguments.keep and path.exists() else {}
    )
    with ExitStack() as stack:
        urls = _start(stack, arguments, contenders)
        found = asyncio.run(_ask_all(urls, _prompts(arguments), arguments.max_tokens))
    samples = {name: [*before.get(name, []), *found.get(name, [])] for name in {**before, **found}}
    figure = {"figure": "real_prompts", **_figure(samples, arguments).as_json(origin)}
    print(table(figure))
    if out and path:
        write_json(path, figure)
        print(f"written: {path} and {write_readme(out)}")
    return 0


def _chosen(names: str, known: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """The names of a list with commas; raises UsageError for one that is not known."""
    chosen = [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in known]:
        raise UsageError(f"{unknown[0]!r} is none of {', '.join(known)}")
    return chosen


def _prompts(arguments: Namespace) -> list[tuple[str, str]]:
    """Kind and text of each prompt; the kinds in turns."""
    document = json.loads(PROMPTS.read_text())
    kinds = _chosen(arguments.kinds, KINDS)
    first, count = arguments.skip, arguments.prompts or (1 if arguments.quick else 10)
    return [
        (kind, text_of(document[kind][number], document["characters"]))
        for number in range(first, min(first + count, min(len(document[kind]) for kind in kinds)))
        for kind in kinds
    ]


def text_of(prompt: Mapping[str, str], characters: int) -> str:
    """A question, and what it is about: docstrings, cut to `characters`."""
    if "about" not in prompt:
        return prompt["ask"]
    quoted = "\n\n".join(_docstring(name) for name in prompt["about"].split("+"))
    return f"{prompt['ask']}\n\n{quoted[:characters].rsplit(' ', 1)[0]}"


def _docstring(name: str) -> str:
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    found = getattr(found, attribute) if attribute else found
    return found if isinstance(found, str) else found.__doc__ or ""


# -- processes --------------------------------------------------------------------------------------------------


def _start(stack: ExitStack, arguments: Namespace, contenders: Sequence[str]) -> dict[str, str]:
    """The servers and a device for each contender; name -> base URL. Only the one that is asked works."""
    server = _serve(stack, arguments, {SERVER_CORE})
    servers = {BOTH: _serve(stack, arguments, {SERVER_CORE, DEVICE_CORE})} if BOTH in contenders else {}
    os.sched_setaffinity(0, {DEVICE_CORE})  # what is started from here on inherits it
    edge = ("edge", "--draft-model", arguments.draft, "--threads", "1", "--http", "127.0.0.1:0")
    urls = {}
    for name in contenders:
        words = (*edge, "--server", servers.get(name, server), *CONTENDERS[name])
        urls[name] = f"http://{stack.enter_context(Process(words, isolated=True)).wait_ready()}"
    return urls


def _serve(stack: ExitStack, arguments: Namespace, cores: set[int]) -> str:
    """Address of a server with a thread on each of `cores`."""
    threads = str(len(cores))
    serve = (
        *("serve", "--model", arguments.target, "--engine", arguments.engine, "--dtype", arguments.dtype),
        *("--numerics", "exact", "--threads", threads, "--listen", "127.0.0.1:0", "--no-prefix-cache"),
    )
    os.sched_setaffinity(0, cores)
    return stack.enter_context(
        Process(serve, isolated=True, environment={"OMP_NUM_THREADS": threads})
    ).wait_ready(600)


async def _ask_all(urls: Mapping[str, str], prompts: Sequence[tuple[str, str]], max_tokens: int) -> Speeds:
    """Every prompt to every contender in turns, after one short answer each that only warms up."""
    found: Speeds = {}
    async with httpx.AsyncClient(timeout=600, trust_env=False) as http:
        for url in urls.values():
            await _ask(http, url, "Say hello.", 16)
        for kind, prompt in prompts:
            texts = {}
            for name, url in urls.items():
                texts[name], speed = await _ask(http, url, prompt, max_tokens)
                found.setdefault(f"{kind}, {name}", []).append(speed)
            if len(set(texts.values())) > 1:
                raise OpenSledError(f"drafts have changed an answer: {kind}, {prompt[:60]!r}")
            say(f"{kind}: " + ", ".join(f"{name} {found[f'{kind}, {name}'][-1]:.1f}" for name in urls))
    return found


async def _ask(http: httpx.AsyncClient, url: str, prompt: str, max_tokens: int) -> tuple[str, float]:
    """The text of a greedy answer, and its tokens/s from the request to the end."""
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0}
    http.base_url = httpx.URL(url)
    async for reply in stream_chat(http, body):
        last = reply
    return last.text, last.usage["completion_tokens"] / last.seconds


# -- the figure -------------------------------------------------------------------------------------------------


def mean_ratio(ours: Sequence[float], none: Sequence[float]) -> dict[str, float]:
    """The geometric mean of the ratios prompt by prompt, with a bootstrap interval of 95 % over the prompts."""
    logs = [math.log(left / right) for left, right in zip(ours, none)]
    draw = random.Random(SEED)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    low, high = means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES)]
    return {
        name: round(math.exp(value), 3)
        for name, value in (("mean", statistics.fmean(logs)), ("low", low), ("high", high))
    }


def _figure(samples: Speeds, arguments: Namespace) -> Figure:
    pairs = [name.rsplit(", ", 1) for name in samples if not name.endswith(f", {NONE}")]
    target, draft = Path(arguments.target).name, Path(arguments.draft).name
    return Figure(
        title="Real prompts on a real pair",
        unit="tokens/s",
        more_is_better=True,
        compared=(
            f"{target} behind `opensled serve` ({arguments.engine}, {arguments.dtype}, level exact, one thread on core "
            f"{SERVER_CORE}) and `opensled edge` with {draft} (one thread on core "
            f"{DEVICE_CORE}), against the same without drafts. Greedy answers of {arguments.max_tokens} tokens at "
            "most, one user, from the request to the last token, the reading of the prompt included; all contenders "
            "in turns, prompt by prompt. All wrote the same texts."
        ),
        loses="Tables and lookup alone lose on single prompts of chat and questions. Long prompts gain least.",
        samples=samples,
        ratios=tuple(
            Comparison(
                f"{kind}: {name}", f"{kind}, {name}", f"{kind}, {NONE}", REQUIRED if name == DEFAULT else None
            )
            for kind, name in pairs
            if name != BOTH  # a way to serve without drafts, too: what it loses is no loss of ours
        ),
        facts={
            "mean ratios, 95 %": {
                f"{kind}: {name}": mean_ratio(samples[f"{kind}, {name}"], samples[f"{kind}, {NONE}"])
                for kind, name in pairs
            },
            "prompts": {kind: len(each) for kind in KINDS if (each := samples.get(f"{kind}, {NONE}"))},
        },
    )


if __name__ == "__main__":
    sys.exit(main())
