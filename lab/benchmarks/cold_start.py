"""Ten answers of a device that obeys its server's hints, from a cold start, against every fixed draft length, on a real
pair.

    python -m lab.benchmarks.cold_start [--target smollm2] [--draft smollm2] [--quick] [--kinds chat,...]

One server on core 0 and one `opensled edge` for each contender on core 1; every prompt goes to all of them in turns,
and all must write the same text. For each kind of text the device starts anew, under a name that is new to the server.
"""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx

from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, write_json
from lab.benchmarks.readme import table, write_readme
from lab.benchmarks.real_contenders import DEVICE_CORE, SERVER_CORE, SETUPS, ask, serve
from lab.benchmarks.real_texts import KINDS, MORE_KINDS, prompts
from lab.testbed.processes import Process
from lab.testbed.provenance import SEED, provenance
from opensled.core.errors import OpenSledError, UsageError
from opensled.models.store import model_file

SHORT = ("chat", "code", "arithmetic", "rewriting")
ALL_KINDS = KINDS + MORE_KINDS
HINT = "hint"
REQUIRED = 0.95  # of the best fixed length
RESAMPLES = 2000  # of the bootstrap
WARM = 2  # tokens of an answer that is not counted: one draft token

Speeds = dict[str, list[float]]  # "kind, contender" -> tokens/s of each answer


def main(words: list[str] | None = None) -> int:
    parser = parser_of("cold_start", __doc__)
    add = parser.add_argument
    add("--target", default="smollm2", help="model that the server verifies with; default %(default)s")
    add("--draft", default="smollm2", help="draft model of the devices, GGUF; default %(default)s")
    add("--drafter", default="llamacpp", help="default %(default)s")
    add("--setup", default="torch", choices=SETUPS, help="of the server; default %(default)s")
    parser.add_argument(
        "--kinds", default=",".join(SHORT), help=f"of {', '.join(ALL_KINDS)}; default %(default)s"
    )
    parser.add_argument("--lengths", default="1,2,3,4,6,8", help="fixed lengths; default %(default)s")
    parser.add_argument("--answers", type=int, help="of each kind; default 10, with --quick 2")
    parser.add_argument("--max-tokens", type=int, default=128, help="of an answer; default %(default)s")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments, sys.argv[1:] if words is None else words))


def _measure(arguments: Namespace, words: Sequence[str]) -> int:
    origin = provenance(f"python -m lab.benchmarks.cold_start {shlex.join(words)}".rstrip())
    out = folder_of(arguments)
    with ExitStack() as stack:
        site = Site(stack, arguments)
        samples = asyncio.run(_ask_all(site, _prompts(arguments), arguments.max_tokens))
    figure = {"figure": "cold_start", **_figure(samples, arguments).as_json(origin)}
    print(table(figure))
    for name, share in figure["facts"]["ratio of all answers, 95 %"].items():
        print(f"  {name:42} {share}")
    if out:
        write_json(out / "cold_start.json", figure)
        print(f"written: {out / 'cold_start.json'} and {write_readme(out)}")
    return 0


def _prompts(arguments: Namespace) -> dict[str, list[str]]:
    """The prompts of each kind."""
    kinds = arguments.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in ALL_KINDS]:
        raise UsageError(f"{unknown[0]!r} is none of {', '.join(ALL_KINDS)}")
    count = arguments.answers or (2 if arguments.quick else 10)
    return {kind: [each.text for each in prompts(kind) if not each.is_long][:count] for kind in kinds}


# -- processes --------------------------------------------------------------------------------------------------


class Site:
    """The server, the devices with fixed lengths, and what starts the other ones."""

    def __init__(self, stack: ExitStack, arguments: Namespace) -> None:
        self._stack, self._arguments = stack, arguments
        self._server = serve(stack, arguments.target, arguments.setup, {SERVER_CORE})
        os.sched_setaffinity(0, {DEVICE_CORE})  # what is started from here on inherits it
        self.fixed = {
            f"k = {length}": self.start(stack, "--stop", "fixed", "--draft-length", length)
            for length in arguments.lengths.split(",")
        }

    def start(self, stack: ExitStack, *words: str) -> str:
        """The base URL of a device."""
        model = ("--draft-model", str(model_file(self._arguments.draft, "*.gguf")))
        fixed = ("--drafter", self._arguments.drafter, "--threads", "1", "--http", "127.0.0.1:0")
        edge = ("edge", *model, *fixed, "--server", self._server, *words)
        return f"http://{stack.enter_context(Process(edge, isolated=True)).wait_ready()}"


async def _ask_all(site: Site, prompts: Mapping[str, Sequence[str]], max_tokens: int) -> Speeds:
    found: Speeds = {}
    async with httpx.AsyncClient(timeout=600, trust_env=False) as http:
        await _warm(http, site.fixed)
        for kind, texts in prompts.items():
            with ExitStack() as stack:
                cold = {HINT: site.start(stack)}
                await _warm(http, cold)
                for prompt in texts:
                    await _in_turns(http, {**cold, **site.fixed}, kind, prompt, max_tokens, found)
    return found


async def _warm(http: httpx.AsyncClient, urls: Mapping[str, str]) -> None:
    """Have the devices read their draft model into memory; of rounds they learn next to nothing."""
    for url in urls.values():
        await _ask(http, url, "Say hello.", WARM)


async def _in_turns(
    http: httpx.AsyncClient, urls: Mapping[str, str], kind: str, prompt: str, max_tokens: int, found: Speeds
) -> None:
    texts = set()
    for name, url in urls.items():
        text, speed = await _ask(http, url, prompt, max_tokens)
        found.setdefault(f"{kind}, {name}", []).append(speed)
        texts.add(text)
    if len(texts) > 1:
        raise OpenSledError(f"drafts have changed an answer: {kind}, {prompt[:60]!r}")
    say(f"{kind}: " + ", ".join(f"{name} {found[f'{kind}, {name}'][-1]:.1f}" for name in urls))


async def _ask(http: httpx.AsyncClient, url: str, prompt: str, max_tokens: int) -> tuple[str, float]:
    """The text of a greedy answer, and its tokens/s from the request to the end."""
    answer = await ask(http, url, prompt, {"temperature": 0, "max_tokens": max_tokens})
    return answer.text, answer.tokens / answer.seconds


# -- the figure -------------------------------------------------------------------------------------------------


def best_fixed(samples: Speeds, kind: str) -> str:
    """The fixed length that takes the least time for all answers of a kind."""
    fixed = [name for name in samples if name.startswith(f"{kind}, k = ")]
    return min(fixed, key=lambda name: sum(1 / speed for speed in samples[name]))


def ratio_of_all(ours: Sequence[float], best: Sequence[float]) -> dict[str, float]:
    """The time of all answers of the best one over ours, with a bootstrap interval of 95 % over the answers."""
    pairs, draw = [(1 / left, 1 / right) for left, right in zip(ours, best)], random.Random(SEED)
    drawn = sorted(_ratio(draw.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    low, high = drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)]
    return {"ratio": round(_ratio(pairs), 3), "low": round(low, 3), "high": round(high, 3)}


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    ours, best = map(sum, zip(*pairs))
    return best / ours


def _figure(samples: Speeds, arguments: Namespace) -> Figure:
    best = {kind: best_fixed(samples, kind) for kind in arguments.kinds.split(",")}
    ours = {kind: f"{kind}, {HINT}" for kind in best}
    shares = {kind: ratio_of_all(samples[ours[kind]], samples[best[kind]]) for kind in best}
    first = {kind: round(samples[ours[kind]][0] / samples[best[kind]][0], 3) for kind in best}
    return Figure(
        title="Cold start on a real pair",
        unit="tokens/s",
        more_is_better=True,
        compared=(
            f"`--stop hint` of a device that has just started, against the best of the fixed lengths "
            f"{arguments.lengths} (the one with the least time for all answers of the kind): "
            f"{Path(arguments.target).name} behind `opensled serve` (set-up {arguments.setup}, one thread "
            f"on core {SERVER_CORE}), {Path(arguments.draft).name} in `opensled edge` ({arguments.drafter}, one thread "
            f"on core {DEVICE_CORE}). Greedy answers of {arguments.max_tokens} tokens at most, from "
            f"the request to the last token, all contenders in turns, each after an answer of {WARM} tokens. "
            "All wrote the same texts."
        ),
        loses="The first answer of a cold device: it starts with blocks of four. Nobody knows the best length before.",
        samples=samples,
        ratios=tuple(Comparison(kind, ours[kind], best[kind], REQUIRED) for kind in best),
        facts={
            "ratio of all answers, 95 %": shares,
            "ratio of the first answer": first,
            "best fixed": {kind: name.partition(", ")[2] for kind, name in best.items()},
        },
    )


if __name__ == "__main__":
    sys.exit(main())
