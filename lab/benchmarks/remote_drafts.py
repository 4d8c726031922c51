"""Drafts by HTTP, as the closest peers have them, against OpenSLED: the same target, draft and link.

    python -m lab.benchmarks.remote_drafts [--links ethernet,wifi-good,lte] [--users 1,4] [--drafts distilled]
        [--counts 3,8] [--kinds chat,code,extraction] [--laps 2] [--max-tokens 64] [--engines llamacpp,torch]
        [--quick] [--out FOLDER]

A peer's target asks a llama-server for a block of K tokens, waits, verifies it in one pass, and asks again
(remote_drafts_peer.py says what of which peer that is). OpenSLED's device drafts ahead, beside a llama-server of the
same kind or with the same model in its own process, and its server verifies in one step what has arrived of all users.
Each side also decodes without drafts. The link lies between target and draft server of the peers, and between server
and device of OpenSLED; each contender has a draft server of its own.

Every prompt goes to all contenders in turns; ratios are of the same prompts. What is measured is kept in a .part file
after each turn: a run that was ended goes on where it was.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from hw_profiles import catalog
from lab.benchmarks.peer_server import require
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, names_of, parser_of, say
from lab.benchmarks.readme import write_readme
from lab.benchmarks.real_contenders import DISTILLED, SELF, add_models, draft_models, told_file
from lab.benchmarks.real_document import Raw
from lab.benchmarks.real_summary import rate
from lab.benchmarks.real_texts import KINDS, MORE_KINDS
from lab.benchmarks.remote_drafts_document import FIGURE, Run, changed, finished, put, unit_of, write
from lab.benchmarks.remote_drafts_sides import (
    Contender,
    Pair,
    Sides,
    contenders,
    plain_of,
    started,
    turn,
    warm,
)
from lab.benchmarks.remote_drafts_view import tables
from lab.benchmarks.server_drafts_document import check_alike, keep, read_kept
from lab.benchmarks.server_drafts_plan import Group, laps, turned
from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import provenance
from opensled.core.errors import OpenSledError, UsageError
from opensled.models.store import model_file

LINKS, SHORT_LINKS = "ethernet,wifi-good,lte", "wifi-good"
ENGINES = ("llamacpp", "torch")  # as `opensled serve --engine NAME` computes by default
SOME_KINDS = "chat,code,extraction"


def main(words: list[str] | None = None) -> int:
    parser = parser_of("remote_drafts", __doc__)
    add_models(parser)
    add = parser.add_argument
    add("--links", help=f"profiles by name; default {LINKS}, with --quick {SHORT_LINKS}")
    add("--users", help="at once; default 1,4, with --quick 1")
    add("--drafts", default=DISTILLED, help=f"of {DISTILLED}, {SELF}; default %(default)s")
    add("--counts", default="3,8", help="tokens of the peers' blocks; default %(default)s")
    add("--kinds", help=f"of {', '.join((*KINDS, *MORE_KINDS))}; default {SOME_KINDS}, with --quick chat")
    add("--laps", type=int, help="groups of prompts of each kind; default 2, with --quick 1")
    add("--max-tokens", type=int, default=64, help="of an answer; default %(default)s")
    add("--engines", help=f"of {', '.join(ENGINES)}; default {','.join(ENGINES)}, with --quick {ENGINES[0]}")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _measure(arguments))


@dataclass(frozen=True)
class Task:
    """What the command asks for."""

    target: str
    drafts: Mapping[str, Path]
    runs: Sequence[Run]
    counts: Sequence[int]  # tokens of the peers' blocks
    kinds: Sequence[str]
    laps: int
    about: Mapping[str, Any]  # what all turns have in common
    path: Path | None  # of the results; None = they are not kept

    @classmethod
    def of(cls, arguments: Namespace) -> Task:
        """Raises UsageError for names and numbers that there are not, NotFound for models that are not here."""
        quick, out = arguments.quick, folder_of(arguments)
        found = draft_models(arguments.target, {DISTILLED: arguments.distilled})
        drafts = names_of(arguments.drafts, found)
        links = [name.strip() for name in (arguments.links or (SHORT_LINKS if quick else LINKS)).split(",")]
        for link in links:
            catalog.link(link)
        users = numbers_of("--users", arguments.users or ("1" if quick else "1,4"))
        engines = names_of(arguments.engines or (ENGINES[0] if quick else ",".join(ENGINES)), ENGINES)
        about = {"target": told_file(model_file(arguments.target, "*.gguf"))}
        tokens = _positive("--max-tokens", arguments.max_tokens)
        return cls(
            target=arguments.target,
            drafts={name: found[name] for name in drafts},
            runs=[Run(*each) for each in product(engines, links, drafts, users)],
            counts=numbers_of("--counts", arguments.counts),
            kinds=names_of(arguments.kinds or ("chat" if quick else SOME_KINDS), (*KINDS, *MORE_KINDS)),
            laps=_positive("--laps", (1 if quick else 2) if arguments.laps is None else arguments.laps),
            about={**about, "max_tokens": tokens},
            path=out / f"{FIGURE}.json" if out else None,
        )

    def lacking(self, raw: Raw, run: Run) -> Iterator[list[Group]]:
        """The groups of each lap of a run that were not asked yet."""
        names = set(contenders(self.counts, run.users))
        done = {unit_of(unit) for unit in raw["units"] if names <= set(unit["answers"])}
        for lap in laps(self.kinds, run.users, self.laps):
            if groups := [group for group in lap if (run, group.kind, group.number) not in done]:
                yield groups


def numbers_of(option: str, text: str) -> list[int]:
    """The numbers of a list with commas; raises UsageError."""
    try:
        return [_positive(option, int(each)) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text} has what is no number; write some, such as {option} 1,4") from None


def _positive(option: str, number: int) -> int:
    if number < 1:
        raise UsageError(f"{option} has {number}, which is too few; name a number from 1 on")
    return number


def _measure(arguments: Namespace) -> int:
    task = Task.of(arguments)
    raw = read_kept(task.path)
    check_alike(raw, task.about)
    wanted = [(run, groups) for run in task.runs for groups in task.lacking(raw, run)]
    say(f"groups of prompts to ask: {sum(len(groups) for _, groups in wanted)}")
    if wanted:
        require()
        exit_on_signals()  # so that no process outlives the run
        raw["pieces"].append(provenance())
    with tempfile.TemporaryDirectory() as folder:
        for run, groups in wanted:
            _lap(task, raw, run, groups, Path(folder))
    print(_told(raw, task.path))
    if found := list(changed(raw["units"])):
        raise OpenSledError("drafts have changed texts at level exact:\n" + "\n".join(found))
    return 0


def _told(raw: Raw, path: Path | None) -> str:
    if not raw["units"]:
        return "nothing was measured"
    lines = tables(write(path, raw) if path else finished(raw))
    if path:
        lines.append(f"written: {path} and {write_readme(path.parent)}")
    return "\n".join(lines)


def _lap(task: Task, raw: Raw, run: Run, groups: Sequence[Group], folder: Path) -> None:
    """Groups in turns, with processes of their own; what is measured is saved after each."""
    found = contenders(task.counts, run.users)
    pair = Pair(task.target, run.engine, task.drafts[run.draft])
    with started(pair, run.link, run.users, found, folder) as sides:
        warm(sides, found, run.users)
        for group in groups:
            unit = _unit(run, group, found, sides, task.about["max_tokens"])
            put(raw, {**unit, **task.about, "draft_file": told_file(pair.draft), "way": sides.peer.way})
            if task.path:
                keep(task.path, raw)


def _unit(
    run: Run, group: Group, found: Mapping[str, Contender], sides: Sides, tokens: int
) -> dict[str, Any]:
    """One group asked of all contenders, in an order that changes with the group."""
    texts: dict[str, list[Any]] = {}
    answers: dict[str, dict[str, Any]] = {}
    for name in turned(list(found), group.number):
        texts[name], answers[name] = turn(sides, name, found[name], group.prompts, tokens)
        answers[name]["load"] = round(os.getloadavg()[0], 2)
    for name in found:
        expected = texts[plain_of(name)]
        answers[name]["other"] = sum(text != own for text, own in zip(texts[name], expected))
    say(f"{run}, {group}: " + ", ".join(f"{name} {rate(answers[name]):.1f}" for name in found))
    return {
        **run._asdict(),
        "kind": group.kind,
        "number": group.number,
        "prompts": [prompt.number for prompt in group.prompts],
        "answers": {name: answers[name] for name in found},
    }


if __name__ == "__main__":
    sys.exit(main())
