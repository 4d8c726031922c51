"""What vLLM loses as the engine of this server, and what drafts of devices bring: `vllm serve` against
`opensled serve --engine vllm`, on the same model, prompts and cores, in turns.

    .venv-vllm/bin/python -m lab.benchmarks.vllm_engine [--quick] [--users 1,4,8] [--turns 6] [--out FOLDER]

Four servers, of which one works at a time: vLLM as it comes and this project's, each without a drafter and with vLLM's
own `ngram`. With one thread, each server with all its processes has core 0, and the client of all of them core 1;
with more threads nothing is pinned. `vllm serve` is read over HTTP, token by token; ours over gRPC by the product's own
edge loop, one for each user. Their drafts are replayed: what the server wrote on the prompt before, each token right
with a given probability, at no cost to the device. One user's real device drafts by `lookup`. Nothing is in a prefix
cache, and all answers are greedy and of the same length.

In bfloat16 a text may differ between batch shapes, so a recording ends to fit a text that departs from it: all texts
that were written on a prompt so far are recordings, and the one that fits best is drafted from.
"""

from __future__ import annotations

import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from lab.benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    names_of,
    parser_of,
    pinned,
    say,
    write_json,
)
from lab.benchmarks.real_texts import KINDS, prompts
from lab.benchmarks.vllm_figure import (
    CONTENDERS,
    LOOKUP,
    OURS,
    OURS_NGRAM,
    STOCK,
    STOCK_NGRAM,
    Turn,
    figure,
    lines,
)
from lab.benchmarks.vllm_servers import Plan, Server, ours, stock
from lab.benchmarks.vllm_users import Drafts, Heard, Recordings, User, by_devices, by_http
from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import provenance
from opensled.core.errors import OpenSledError
from opensled.core.messages import ChatMessage
from vllm_plugin import versions
from vllm_plugin.model_folder import folder_of as model_folder_of
from verify_server.text.hf_text import HFText

SERVER_CORE, CLIENT_CORE = 0, 1
CONTEXT, DRAFT = 1024, 8  # tokens
CHARACTERS = 600  # of what a prompt quotes


def main(words: list[str] | None = None) -> int:
    exit_on_signals()
    return exit_code(lambda: _run(_arguments(words)))


def _arguments(words: list[str] | None) -> Namespace:
    parser = parser_of("vllm_engine", __doc__)
    parser.add_argument("--model", default="", help="default: smollm2; with --quick tiny")
    parser.add_argument("--dtype", default="", help="default: bfloat16; with --quick float32")
    parser.add_argument("--users", default="", metavar="N,...", help="default: 1,4,8; with --quick 1,8")
    parser.add_argument(
        "--turns", type=int, default=0, help="of each number of users; default: 6; with --quick 1"
    )
    parser.add_argument("--tokens", type=int, default=0, help="of an answer; default: 96; with --quick 32")
    parser.add_argument("--threads", type=int, default=1, help="of a step; default %(default)s")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME;...",
        help=f"contenders, of: {'; '.join(CONTENDERS)}; default: all",
    )
    parser.add_argument("--eager", action="store_true", help="without torch.compile; a server starts sooner")
    add_quick_and_out(parser)
    found = parser.parse_args(words)
    if found.quick:
        quick = {"model": "tiny", "dtype": "float32", "users": "1,8", "turns": 1, "tokens": 32}
        found.eager = True
    else:
        quick = {"model": "smollm2", "dtype": "bfloat16", "users": "1,4,8", "turns": 6, "tokens": 96}
    for name, value in quick.items():
        setattr(found, name, getattr(found, name) or value)
    return found


def _run(arguments: Namespace) -> int:
    origin = provenance()
    names = names_of(arguments.only + ";", CONTENDERS) if arguments.only else [*CONTENDERS]
    users = [int(each) for each in arguments.users.split(",")]
    versions.prepare()
    folder = model_folder_of(arguments.model)
    plan = Plan(
        folder, arguments.dtype, CONTEXT, max(users), DRAFT, arguments.threads, compiled=not arguments.eager
    )
    with nullcontext() if plan.threads > 1 else pinned(CLIENT_CORE), ExitStack() as stack:
        bench = Bench(_started(stack, plan, names), _questions(folder), arguments.tokens)
        turns = [turn for count in users for turn in bench.turns(names, count, arguments.turns)]
    document = {
        "figure": "vllm_engine",
        **figure(plan, arguments.model, arguments.tokens, turns).as_json(origin),
    }
    document["turns"] = [turn._asdict() for turn in turns]
    print("\n".join(lines(turns)))
    if out := folder_of(arguments):
        write_json(out / "vllm_engine.json", document)
        print(f"written: {out / 'vllm_engine.json'}")
    return 0


def _started(stack: ExitStack, plan: Plan, names: Sequence[str]) -> dict[str, Server]:
    """The servers that the contenders need, one after the other."""
    starts: dict[str, Callable[[], Any]] = {
        STOCK: lambda: stock(plan),
        OURS: lambda: ours(plan),
        STOCK_NGRAM: lambda: stock(plan, "ngram"),
        OURS_NGRAM: lambda: ours(plan, "vllm:ngram"),
    }
    wanted = {CONTENDERS[name].server for name in names} | {OURS}
    found: dict[str, Server] = {}
    for name, start in starts.items():
        if name in wanted:
            say(f"starting {name}")
            with nullcontext() if plan.threads > 1 else pinned(SERVER_CORE):
                found[name] = stack.enter_context(start())
    return found


def _questions(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    """Prompts by kind of text, as token ids of a chat."""
    text = HFText(folder)
    return {
        kind: [text.render([ChatMessage("user", each.text)]) for each in prompts(kind, CHARACTERS)]
        for kind in KINDS
    }


class Bench:
    """The servers, and what was written on each prompt so far."""

    def __init__(
        self, servers: Mapping[str, Server], questions: Mapping[str, Sequence[tuple[int, ...]]], tokens: int
    ) -> None:
        self._servers, self._questions, self._tokens = servers, questions, tokens
        self._recordings = Recordings()

    def turns(self, names: Sequence[str], users: int, count: int) -> Iterator[Turn]:
        """All contenders with so many users, `count` times; each time another one begins."""
        names = [name for name in names if name != LOOKUP or users == 1]
        for server in self._servers:
            self._asked(server, Drafts(), self._group(users, 0))  # it warms up
        for number in range(count):
            group = self._group(users, number)
            self._record(group)
            shift = number % len(names)
            for name in [*names[shift:], *names[:shift]]:
                turn = self._turn(name, users, number, group)
                say(f"{users} users, turn {number + 1} of {count}: {name}: {turn.rate:.1f} tokens/s")
                yield turn

    def _group(self, users: int, number: int) -> list[User]:
        """Another kind for each user, and other prompts in each turn."""
        found = []
        for place in range(number * users, (number + 1) * users):
            kind = KINDS[place % len(KINDS)]
            asked = self._questions[kind]
            found.append(User(kind, asked[place // len(KINDS) % len(asked)], self._tokens))
        return found

    def _record(self, group: Sequence[User]) -> None:
        for user, text in zip(group, self._asked(OURS, Drafts(), group).texts):
            self._recordings.add(user.prompt, text)

    def _asked(self, name: str, drafts: Drafts, group: Sequence[User]) -> Heard:
        server = self._servers[name]
        if name in (STOCK, STOCK_NGRAM):
            return by_http(server.address, group)
        return by_devices(server.address, group, drafts, self._recordings)

    def _turn(self, name: str, users: int, number: int, group: Sequence[User]) -> Turn:
        contender = CONTENDERS[name]
        server = self._servers[contender.server]
        before = server.counted()
        heard = self._asked(contender.server, contender.drafts, group)
        after = server.counted()
        if heard.tokens != sum(user.tokens for user in group):
            raise OpenSledError(f"{name} wrote {heard.tokens} tokens for {users} users, not all of them")
        first = [self._recordings.first(user.prompt) for user in group]
        other = sum(text != wanted for text, wanted in zip(heard.texts, first))
        for user, text in zip(group, heard.texts):
            self._recordings.add(user.prompt, text)
        return Turn(
            name,
            users,
            number,
            tuple(user.kind for user in group),
            heard.tokens,
            heard.seconds,
            statistics.fmean(heard.first_s),
            after.steps - before.steps,
            heard.drafted,
            heard.accepted,
            after.drafted - before.drafted,
            after.accepted - before.accepted,
            after.cpu_s - before.cpu_s,
            other,
        )


if __name__ == "__main__":
    sys.exit(main())
