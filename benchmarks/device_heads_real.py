"""A draft head on a device for real: SmolLM2 on core 0, devices on core 1, every prompt asked of all in turns.

    python -m benchmarks.device_heads_real --head smollm2-ctc-device --head smollm2-specformer-device
        [--kinds chat,...] [--prompts 3] [--max-tokens 48] [--quick] [--out FOLDER]

Compared: no drafts, the distilled draft model on the device, each head on the device (folders that `opensled
export-head` wrote), and the same heads beside the target. Set-up torch at level exact, greedy: all texts must be equal.
Only the contender that is asked works. Both sides are one core of the same machine, and the link is loopback: so this
says what heads are to a device as fast as its server, and nothing of other boards (benchmarks.device_heads does). A
run that was ended goes on where it was. Writes device_heads_real.json, and the table in README.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.device_heads_real_view import section
from benchmarks.program import add_quick_and_out, exit_code, folder_of, names_of, parser_of, say, write_json
from benchmarks.readme import write_readme
from benchmarks.real_contenders import DEVICE_CORE, NONE, SERVER_CORE, ask, serving, warm
from benchmarks.real_summary import mean_ratio, rate
from benchmarks.real_texts import KINDS, Prompt, prompts
from opensled.drafting.head_form import read_about
from opensled.errors import OpenSledError, UsageError
from opensled.store import cache_folder, model_file
from opensled_testbed.processes import Process, exit_on_signals
from opensled_testbed.provenance import provenance

NAME, TARGET, SETUP = "device_heads_real", "smollm2", "torch"
DRAFT = "draft model on the device"
READY_S = 600.0
FEWEST = 4  # kinds that are asked where nothing else is said


class Contender(NamedTuple):
    """A device, and the drafter of the server that it asks."""

    words: tuple[str, ...]  # of opensled edge
    beside: str = ""  # of opensled serve --drafter; "" = none


def main(words: Sequence[str] | None = None) -> int:
    parser = parser_of(NAME, __doc__)
    add = parser.add_argument
    add("--head", action="append", default=[], metavar="FOLDER", help="a head for devices; may be repeated")
    add("--draft-model", default="smollm2-draft", help="on the device; default %(default)s")
    add("--kinds", default=",".join(KINDS[:FEWEST]), help=f"of {', '.join(KINDS)}; default %(default)s")
    add("--prompts", type=int, default=3, help="of each kind; default %(default)s")
    add("--max-tokens", type=int, default=48, help="of an answer; default %(default)s")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    command = f"python -m benchmarks.{NAME} {' '.join(sys.argv[1:] if words is None else words)}".rstrip()
    return exit_code(lambda: _measured(arguments, command, folder_of(arguments)))


def contenders(folders: Sequence[str], draft_model: str) -> dict[str, Contender]:
    """Raises UsageError without a head, NotFound, UnsupportedModel."""
    if not folders:
        raise UsageError("name heads for devices with --head; opensled export-head writes them")
    kinds = {read_about(Path(folder)).kind: folder for folder in folders}
    found = {NONE: Contender(("--drafter", "none"))}
    model = str(model_file(draft_model, "*.gguf"))
    found[DRAFT] = Contender(("--drafter", "llamacpp", "--draft-model", model))
    for kind, folder in kinds.items():
        found[f"{kind} on the device"] = Contender(("--drafter", "head", "--draft-model", folder))
    for kind in kinds:
        found[f"{kind} on the server"] = Contender(("--drafter", "none"), kind)
    return found


def _measured(arguments: Namespace, command: str, out: Path | None) -> int:
    names = contenders(arguments.head, arguments.draft_model)
    wanted = _prompts(arguments)
    path = out / f"{NAME}.json" if out else None
    document = _begun(path, arguments.max_tokens, list(names))
    done = {(unit["kind"], unit["number"]) for unit in document["units"]}
    lacking = [prompt for prompt in wanted if (prompt.kind, prompt.number) not in done]
    if lacking:
        exit_on_signals()
        document["pieces"].append(provenance(command))
        asyncio.run(_all(names, lacking, document, path))
    document["ratios_to_none"] = ratios(document["units"], list(names))
    document["provenance"] = document["pieces"][-1]
    if path:
        write_json(path, document)
        print(f"written: {write_readme(path.parent)}")
    print(*section(document), sep="\n")
    return 0


def _prompts(arguments: Namespace) -> list[Prompt]:
    """Kinds in turns."""
    kinds = names_of(arguments.kinds, KINDS)[: 1 if arguments.quick else None]
    count = 1 if arguments.quick else arguments.prompts
    return [
        prompt for number in range(count) for kind in kinds for prompt in prompts(kind)[number : number + 1]
    ]


def _begun(path: Path | None, max_tokens: int, names: list[str]) -> dict[str, Any]:
    """What was measured so far with the same contenders. Raises UsageError for a file with others."""
    about = {"max_tokens": max_tokens, "contenders": names}
    known = json.loads(path.read_text()) if path and path.is_file() else None
    if known and known["facts"] != about:
        raise UsageError(
            f"{path} holds answers of other contenders or lengths; remove it, or name another --out"
        )
    return known or {
        "figure": NAME,
        "title": "A draft head on the device, for real",
        "label": "real",
        "facts": about,
        "pieces": [],
        "units": [],
    }


async def _all(
    names: Mapping[str, Contender], lacking: Sequence[Prompt], document: dict[str, Any], path: Path | None
) -> None:
    cores = os.sched_getaffinity(0)
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, cores)
        urls = _started(stack, names)
        async with httpx.AsyncClient(timeout=READY_S, trust_env=False) as http:
            await warm(http, urls)
            for prompt in lacking:
                document["units"].append(await _unit(http, urls, prompt, document))
                if path:
                    write_json(path, document)


def _started(stack: ExitStack, names: Mapping[str, Contender]) -> dict[str, str]:
    """Base URL of each device's API; the servers are ready one after another."""
    servers = {}
    for beside in dict.fromkeys(each.beside for each in names.values()):
        more = ("--drafter", beside) if beside else ("--features",)
        servers[beside] = serving(stack, TARGET, SETUP, {SERVER_CORE}, more).wait_ready(READY_S)
    os.sched_setaffinity(0, {DEVICE_CORE})  # what is started from here on inherits it
    fixed = ("--threads", "1", "--http", "127.0.0.1:0")
    cache = {"OPENSLED_CACHE_DIR": str(cache_folder())}
    edges = {
        name: stack.enter_context(
            Process(
                ("edge", "--server", servers[each.beside], *fixed, *each.words),
                isolated=True,
                environment=cache,
            )
        )
        for name, each in names.items()
    }
    return {name: f"http://{edge.wait_ready()}" for name, edge in edges.items()}


async def _unit(
    http: httpx.AsyncClient, urls: Mapping[str, str], prompt: Prompt, document: Mapping[str, Any]
) -> dict[str, Any]:
    """One prompt asked of all, in an order that changes with it. Raises OpenSledError for texts that differ."""
    order = list(urls)
    turn = len(document["units"]) % len(order)
    asked = {"temperature": 0, "max_tokens": document["facts"]["max_tokens"]}
    found = {name: await ask(http, urls[name], prompt.text, asked) for name in order[turn:] + order[:turn]}
    if different := [name for name in order if found[name].text != found[NONE].text]:
        raise OpenSledError(f"{prompt.kind} {prompt.number}: another text than without drafts: {different}")
    answers = {name: found[name]._replace(text="")._asdict() for name in order}
    told = ", ".join(f"{name} {rate(answer):.1f}" for name, answer in answers.items())
    say(f"{prompt.kind} {prompt.number}, load {os.getloadavg()[0]:.1f}: {told}")
    return {
        "kind": prompt.kind,
        "number": prompt.number,
        "load": round(os.getloadavg()[0], 2),
        "answers": answers,
    }


def ratios(units: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Of tokens/s from the request to the last token; geometric means over kinds and their prompts."""
    found = {}
    for name in names:
        if name == NONE:
            continue
        kinds: dict[str, list[float]] = {}
        for unit in units:
            ours, none = (rate(unit["answers"][each]) for each in (name, NONE))
            kinds.setdefault(unit["kind"], []).append(math.log(ours / none))
        found[name] = mean_ratio(list(kinds.values()))
    return found


if __name__ == "__main__":
    sys.exit(main())
