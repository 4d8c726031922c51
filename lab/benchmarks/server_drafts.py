"""What the server's own drafters bring to clients without a device, on a real pair and real prompts, by kind of text.

    python -m lab.benchmarks.server_drafts [--engines torch,llamacpp] [--drafters none,lookup,cacheback,model]
        [--users 1,4,8] [--kinds chat,...] [--prompts 10] [--max-tokens 64] [--samplings greedy]
        [--figure server_drafts|heads|server_both] [--quick] [--out FOLDER]

One `serve --server-drafter NAME` for each drafter, on core 0 with one thread; every prompt goes to all of them in
turns, over their OpenAI API. With N users a turn is N prompts of a kind at the same time. At level exact their texts
must be equal, or the run ends with an error that says where they are not. The servers' prefix cache is off, and no
server is asked a prompt twice. What is measured is kept in a .part file after each turn: a run that was ended goes on
where it was.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, names_of, parser_of, say
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_contenders import NONE, SAMPLINGS, SETUPS, level, told_file
from lab.benchmarks.real_document import Raw
from lab.benchmarks.real_plot import write_plot
from lab.benchmarks.real_summary import Unit, rate
from lab.benchmarks.real_texts import KINDS, MORE_KINDS
from lab.benchmarks.server_drafts_document import (
    changed,
    check_alike,
    finished,
    first_difference,
    is_done,
    keep,
    put,
    read_kept,
    write,
)
from lab.benchmarks.server_drafts_plan import GREEDY, Group, Run, groups_of, laps, place, turned
from lab.benchmarks.server_drafts_turn import Server, started, turn, warm
from lab.benchmarks.server_drafts_view import tables, title
from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import SEED, provenance
from opensled.core.errors import NotFound, OpenSledError, UsageError
from opensled.models.store import model_file

ENGINES = "torch,llamacpp"
# By the name of the figure
DRAFTERS = {
    "server_drafts": "none,lookup,cacheback,model",
    "heads": "none,specformer,ctc,lookup,cacheback,model",
    "server_both": "none,lookup,model,lookup+model",
}
QUICK_DRAFTERS = "none,lookup"


def main(words: list[str] | None = None) -> int:
    parser = parser_of("server_drafts", __doc__)
    add = parser.add_argument
    add("--target", default="smollm2", help="model that the server verifies with; default %(default)s")
    add("--draft-model", default="smollm2-draft", help="of drafter model; default %(default)s")
    add(
        "--engines",
        help=f"of {'; '.join(SETUPS)} (then with semicolons); default {ENGINES}, with --quick torch",
    )
    add("--figure", choices=tuple(DRAFTERS), default="server_drafts", help="default %(default)s")
    add(
        "--drafters",
        help=f"of `serve --server-drafter`; default those of the figure, with --quick {QUICK_DRAFTERS}",
    )
    add("--users", help="at once; default 1,4,8, with --quick 1")
    add(
        "--kinds", help=f"of {', '.join((*KINDS, *MORE_KINDS))}; default {','.join(KINDS)}, with --quick chat"
    )
    add("--prompts", type=int, help="of each kind, 3 groups at least; default 10, with --quick 1")
    add("--samplings", default=GREEDY, help=f"of {', '.join(SAMPLINGS)}; default %(default)s")
    add("--max-tokens", type=int, default=64, help="of an answer; default %(default)s")
    add("--no-stream", action="store_true", help="ask for answers in one piece: no time to a first text")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


@dataclass(frozen=True)
class Task:
    """What the command asks for."""

    names: list[str]  # of the drafters, none among them
    draft_model: str  # of drafter model
    about: dict[str, Any]  # what all its turns have in common
    prompts: int
    runs: list[Run]
    kinds: list[str]
    path: Path | None  # of the results; None = they are not kept

    @classmethod
    def of(cls, arguments: Namespace) -> Task:
        """Raises UsageError for names and numbers that there are not."""
        quick, out = arguments.quick, folder_of(arguments)
        names = _drafters(arguments.drafters or (QUICK_DRAFTERS if quick else DRAFTERS[arguments.figure]))
        runs = list(_runs(arguments))
        kinds = arguments.kinds or ("chat" if quick else ",".join(KINDS))
        about = {
            "target": arguments.target,
            "draft": _told_model(arguments.draft_model),
            "max_tokens": arguments.max_tokens,
            "streamed": not arguments.no_stream,
        }
        return cls(
            names=names,
            draft_model=arguments.draft_model,
            about=about,
            prompts=_positive((1 if quick else 10) if arguments.prompts is None else arguments.prompts),
            runs=runs,
            kinds=names_of(kinds, (*KINDS, *MORE_KINDS)),
            path=out / f"{arguments.figure}.json" if out else None,
        )

    def lacking(self, raw: Raw, run: Run) -> Iterator[list[Group]]:
        """The groups of each lap of a run that were not asked yet."""
        done = {place(unit) for unit in raw["units"] if is_done(unit, self.names)}
        for lap in laps(self.kinds, run.users, groups_of(self.prompts, run.users)):
            if groups := [group for group in lap if (run, group.kind, group.number) not in done]:
                yield groups


def _drafters(text: str) -> list[str]:
    """With none, which all others are compared with, as the first one."""
    names = list(dict.fromkeys((NONE, *(name.strip() for name in text.split(",")))))
    if len(names) == 1:
        raise UsageError(f"there is nothing to compare with {NONE}; name drafters, such as --drafters lookup")
    return names


def _runs(arguments: Namespace) -> Iterator[Run]:
    """Engines one after the other."""
    quick = arguments.quick
    users = [_count(each) for each in (arguments.users or ("1" if quick else "1,4,8")).split(",")]
    for engine in names_of(arguments.engines or ("torch" if quick else ENGINES), SETUPS):
        for sampling in names_of(arguments.samplings, SAMPLINGS):
            yield from (Run(engine, sampling, number) for number in users)


def _count(text: str) -> int:
    try:
        return _positive(int(text))
    except ValueError:
        raise UsageError(f"{text!r} is no number of users; name some, such as --users 1,4,8") from None


def _positive(number: int) -> int:
    if number < 1:
        raise UsageError(f"{number} is too few; name a number from 1 on")
    return number


def _told_model(name: str) -> str:
    """The draft model's file; "" where it is not here."""
    try:
        return told_file(model_file(name, "*.gguf"))
    except NotFound:
        return ""


def _measure(arguments: Namespace) -> int:
    task = Task.of(arguments)
    raw = read_kept(task.path)
    check_alike(raw, task.about)
    wanted = [(run, groups) for run in task.runs for groups in task.lacking(raw, run)]
    say(f"{sum(len(groups) for _, groups in wanted)} turns of {', '.join(task.names)} to measure")
    if wanted:
        exit_on_signals()  # so that no process outlives the run
        raw["pieces"].append(provenance())
    for run, groups in wanted:
        target = task.about["target"]
        with started(target, run.setup, task.names, task.draft_model) as servers:
            asyncio.run(_lap(task, raw, run, groups, servers))
    print(_told(raw, task.path))
    if found := list(changed(raw["units"])):
        raise OpenSledError("drafts have changed texts at level exact:\n" + "\n".join(found))
    return 0


def _told(raw: Raw, path: Path | None) -> str:
    if not raw["units"]:
        return "nothing was measured"
    document = write(path, raw) if path else finished(raw)
    lines = tables(document)
    if path:
        plot = path.with_suffix(".svg")
        write_plot({title(run): run for run in document["facts"]["runs"]}, plot)
        lines.append(f"written: {path}, {plot} and {write_readme(path.parent)}")
    return "\n".join(lines)


async def _lap(
    task: Task, raw: Raw, run: Run, groups: Sequence[Group], servers: Mapping[str, Server]
) -> None:
    """Groups in turns; what is measured is saved after each."""
    await warm(servers)
    about = {**task.about, "level": await level(servers[NONE].grpc)}
    for group in groups:
        put(raw, await _unit(run, group, servers, about))
        if task.path:
            keep(task.path, raw)


async def _unit(run: Run, group: Group, servers: Mapping[str, Server], about: Mapping[str, Any]) -> Unit:
    """One group asked of all drafters, in an order that changes with the group."""
    shared = {**SAMPLINGS[run.sampling], "max_tokens": about["max_tokens"]}
    asked = {prompt.text: {**shared, "seed": SEED + prompt.number} for prompt in group.prompts}
    texts, turns = {}, {}
    for name in turned(list(servers), group.number):
        idle = [server for other, server in servers.items() if other != name]
        texts[name], turns[name] = await turn(servers[name], idle, asked, about["streamed"])
    answers = {name: {**turns[name], "other": _other(group, texts[name], texts[NONE])} for name in servers}
    unit = {
        **run._asdict(),
        **about,
        "kind": group.kind,
        "number": group.number,
        "prompts": [prompt.number for prompt in group.prompts],
        "long": sum(prompt.is_long for prompt in group.prompts),
        "answers": answers,
    }
    told = ", ".join(f"{name} {rate(each):.1f}" for name, each in answers.items())
    say(f"{run}, {group}: {told}")
    for line in changed([unit]):
        say(f"DRAFTS HAVE CHANGED A TEXT: {line}")
    return unit


def _other(group: Group, texts: Sequence[str], expected: Sequence[str]) -> list[tuple[int, int]]:
    """Prompts whose text is not that of `none`, each with the first character that differs."""
    found = zip(group.prompts, map(first_difference, texts, expected))
    return [(prompt.number, at) for prompt, at in found if at is not None]


if __name__ == "__main__":
    sys.exit(main())
