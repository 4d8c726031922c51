"""What drafts bring on a real pair and real prompts: every drafter against no drafts, by kind of text.

    python -m lab.benchmarks.real_prompts [--target smollm2] [--setup torch] [--minutes 2.5] [--quick] [--out FOLDER]

One server on core 0, one `opensled edge` for each contender on core 1, and a second server on both cores; every prompt
goes to all of them in turns. Their texts must be equal. The server's prefix cache is off: each turn reads its
prompt anew, as a new user's does. With --minutes a run ends in time; the next one goes on where it ended. With --gate
it rests while others want the machine. Results are added to real_prompts.json.
"""

import asyncio
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, names_of, parser_of, say
from lab.benchmarks.readme import table, write_readme
from lab.benchmarks.real_contenders import (
    CONTENDERS,
    DEFAULT,
    NONE,
    SAMPLINGS,
    SETUPS,
    Answer,
    Started,
    add_models,
    ask,
    available,
    draft_models,
    level,
    start,
    told_file,
    warm,
)
from lab.benchmarks.real_document import Raw, finished, key, put, read_raw, write
from lab.benchmarks.real_plot import write_plot
from lab.benchmarks.real_summary import Unit, rate
from lab.benchmarks.real_texts import KINDS, MORE_KINDS, Prompt, prompts
from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import SEED, provenance
from opensled.core.errors import OpenSledError

COUNTED = ("tokens", "seconds", "first_s", "rounds", "round_tokens", "drafted", "accepted")
GLANCE_S = 0.5  # between two looks at the gate
EXACT = "exact"  # level at which a text must not depend on drafts


def main(words: list[str] | None = None) -> int:
    parser = parser_of("real_prompts", __doc__)
    add_models(parser)
    parser.add_argument(
        "--setup", default="default", choices=SETUPS, help="of the server; default %(default)s"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help="default %(default)s")
    parser.add_argument("--samplings", default=",".join(SAMPLINGS), help="default %(default)s")
    parser.add_argument("--contenders", help=f"of {', '.join(CONTENDERS)}; default all, with --quick two")
    parser.add_argument("--prompts", type=int, help="of each kind; default 12, with --quick 1")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer; default %(default)s")
    parser.add_argument(
        "--minutes", type=float, default=0, help="begin no prompt that may last longer; default: all"
    )
    parser.add_argument("--gate", type=Path, metavar="FILE", help="begin prompts only while FILE is there")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


def _measure(arguments: Namespace) -> int:
    until = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    out = folder_of(arguments)
    path = out / "real_prompts.json" if out else None
    raw = read_raw(path)
    drafts = draft_models(arguments.target, {"distilled": arguments.distilled})
    names = list(available(_contenders(arguments), drafts))
    if missing := [name for name in _contenders(arguments) if name not in names]:
        say(f"left out, for their draft model is not here: {', '.join(missing)}")
    about = {
        "setup": arguments.setup,
        "target": arguments.target,
        "max_tokens": arguments.max_tokens,
        "drafts": {name: told_file(model) for name, model in drafts.items()},
    }
    wanted = list(_lacking(raw, arguments, names, about))
    say(f"{len(wanted)} prompts to ask; set-up {arguments.setup}: {', '.join(names)}")
    if wanted:
        exit_on_signals()  # so that no process outlives the run
        raw["pieces"].append(provenance())
        with ExitStack() as stack:
            started = start(stack, arguments.target, arguments.setup, names, drafts)
            _pass(arguments.gate, until)  # devices learn speeds from their first answer
            wanted_in_time = _timed(wanted, until, arguments.gate)
            asyncio.run(_ask_all(started, wanted_in_time, raw, about, path))
    print(_told(raw, out, path))
    return 0


def _told(raw: Raw, out: Path | None, path: Path | None) -> str:
    if not raw["units"]:
        return "nothing was measured"
    if not out or not path:
        return table(finished(raw))
    document = write(path, raw)
    write_plot(titled(document["facts"]["runs"]), out / "real_prompts.svg")
    return f"{table(document)}\nwritten: {path} and {write_readme(out)}"


def titled(runs: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By the titles of their panels."""
    return {f"set-up {run['setup']}, {run['sampling']}": run for run in runs}


def _contenders(arguments: Namespace) -> list[str]:
    if not arguments.contenders:
        return [NONE, DEFAULT] if arguments.quick else list(CONTENDERS)
    chosen = names_of(arguments.contenders, CONTENDERS)
    return chosen if NONE in chosen else [NONE, *chosen]


def _lacking(
    raw: Raw, arguments: Namespace, names: Sequence[str], about: Mapping[str, Any]
) -> Iterator[tuple[str, Prompt]]:
    """Sampling and prompt of each unit that was not asked of all of `names` yet; kinds and samplings in turns."""
    done = {
        key(unit)
        for unit in raw["units"]
        if set(names) <= set(unit["answers"]) and all(unit[name] == value for name, value in about.items())
    }
    kinds = [prompts(kind) for kind in names_of(arguments.kinds, (*KINDS, *MORE_KINDS))]
    most = arguments.prompts or (1 if arguments.quick else 12)
    for row in zip(*kinds):
        for sampling in names_of(arguments.samplings, SAMPLINGS):
            for prompt in row:
                place = (arguments.setup, sampling, prompt.kind, prompt.number)
                if prompt.number < most and place not in done:
                    yield sampling, prompt


def _timed(
    wanted: Sequence[tuple[str, Prompt]], until: float, gate: Path | None
) -> Iterator[tuple[str, Prompt]]:
    """Those that are over in time if none lasts longer than the longest before it, each once the gate is open."""
    longest = 0.0
    for unit in wanted:
        _pass(gate, until)
        begun = time.monotonic()
        if begun + longest > until:
            return
        yield unit
        longest = max(longest, time.monotonic() - begun)


def _pass(gate: Path | None, until: float) -> None:
    while gate and not gate.exists() and time.monotonic() < until:
        time.sleep(GLANCE_S)


async def _ask_all(
    started: Started,
    wanted: Iterable[tuple[str, Prompt]],
    raw: Raw,
    about: Mapping[str, Any],
    path: Path | None,
) -> None:
    """Each unit in turns; what is measured is saved after each."""
    about = {**about, "level": await level(started.server)}
    async with httpx.AsyncClient(timeout=600, trust_env=False) as http:
        await warm(http, started.urls)
        for sampling, prompt in wanted:
            put(raw, await _unit(http, started.urls, sampling, prompt, about))
            if path:
                write(path, raw)


async def _unit(
    http: httpx.AsyncClient, urls: Mapping[str, str], sampling: str, prompt: Prompt, about: Mapping[str, Any]
) -> Unit:
    """One prompt asked of all contenders, in an order that changes with the prompt."""
    fields = {**SAMPLINGS[sampling], "seed": SEED + prompt.number, "max_tokens": about["max_tokens"]}
    names = list(urls)
    turned = names[prompt.number % len(names) :] + names[: prompt.number % len(names)]
    answers = {name: await ask(http, urls[name], prompt.text, fields) for name in turned}
    found = {name: _as_json(answers[name], answers[NONE].text) for name in names}
    if about["level"] == EXACT and not all(each["same"] for each in found.values()):
        raise OpenSledError(f"drafts have changed an answer: {sampling}, {prompt.kind} {prompt.number}")
    told = ", ".join(f"{name} {rate(each):.1f}" for name, each in found.items())
    say(f"{sampling}, {prompt.kind} {prompt.number}, {answers[NONE].prompt_tokens} tokens: {told}")
    return {
        **about,
        "sampling": sampling,
        "kind": prompt.kind,
        "number": prompt.number,
        "long": prompt.is_long,
        "text": answers[NONE].text,
        "prompt_tokens": answers[NONE].prompt_tokens,
        "answers": found,
    }


def _as_json(answer: Answer, expected: str) -> dict[str, Any]:
    """Without the text, which is said once; `same`: whether it is that of no drafts."""
    fields = answer._asdict()
    return {name: fields[name] for name in COUNTED} | {"same": answer.text == expected}


if __name__ == "__main__":
    sys.exit(main())
