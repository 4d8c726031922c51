"""The cost of `vllm serve --opensled` for users without a device, and the gain of drafts from devices: both against
`vllm serve` as it comes, on the same model, prompts and cores, in turns. Or, with --drafters, vLLM's own drafters with
`--opensled` and without, both against none.

    .venv-vllm/bin/python -m lab.benchmarks.vllm_engine [--quick] [--users 1,8,32,64] [--devices 1,4,8] [--out FOLDER]
    .venv-vllm/bin/python -m lab.benchmarks.vllm_engine --drafters ngram,suffix,draft_model [--quick] [--out FOLDER]

Two servers of each kind, of which one works at a time: two processes of the same server differ by more than a tenth, so
turns alternate between them. With one thread, each server with all its processes has core 0, and the client of all core
1; with more threads nothing is pinned. Users read vLLM's API, token by token; devices are the product's own edge loop
over gRPC. Their drafts are replayed: an earlier answer to the prompt, each token right with a given probability, at no
cost to the device. Nothing is in a prefix cache, and all answers are greedy and of the same length.

In bfloat16 a text may differ between batch shapes, so a recording ends to fit a text that departs from it: all texts
that were written on a prompt so far are recordings, and the one that fits best is drafted from.
"""

from __future__ import annotations

import math
import statistics
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    parser_of,
    pinned,
    say,
    table,
    write_json,
)
from lab.benchmarks.real_summary import mean_ratio
from lab.benchmarks.real_texts import KINDS, prompts
from lab.benchmarks.vllm_servers import Plan, Server, served
from lab.benchmarks.vllm_users import Heard, Recordings, User, by_devices, by_http
from lab.testbed.processes import exit_on_signals
from lab.testbed.provenance import provenance
from opensled.core.errors import OpenSledError, UsageError
from opensled.core.messages import ChatMessage
from verify_server.text.hf_text import HFText
from vllm_plugin import drafters
from vllm_plugin.model_folder import folder_of as model_folder_of

SERVER_CORE, CLIENT_CORE = 0, 1
CONTEXT, DRAFT = 1024, 8  # tokens
CHARACTERS = 600  # of the passage that a prompt quotes
STOCK, OURS = "vllm serve", "vllm serve --opensled"
# Of devices, by the share of their draft tokens that are right: tokens/s over stock that one user must reach
DEVICES = {f"devices, {share} right (replayed)": (share, least) for share, least in ((0.6, 1.6), (0.8, 2.2))}
REQUIRED = 0.97  # of all others
DRAFT_MODELS = {"tiny": "tiny-draft", "smollm2": "smollm2-draft"}
PROPOSED = 5  # tokens of a draft of vLLM's drafter
QUICK = {"model": "tiny", "dtype": "float32", "users": "1,8", "devices": "1", "turns": 1, "tokens": 32}
WHOLE = {
    "model": "smollm2",
    "dtype": "bfloat16",
    "users": "1,8,32,64",
    "devices": "1,4,8",
    "turns": 8,
    "tokens": 96,
}
COMPARED = (
    "`vllm serve --opensled` against `vllm serve` of the same release, model, dtype, context, number of sequences and "
    "KV; prefix caches off. One core for each server with all its processes, the other one for the client, unless "
    "there are more threads. From the first question to the last token of users who all ask at the same time; with "
    "devices each user has one."
)
PAIRS: Mapping[str, tuple[bool, Mapping[str, object]]] = {STOCK: (False, {}), OURS: (True, {})}
LOSES = "Drafts that are wrong cost rows, which several users' steps have less room for."


class Turn(NamedTuple):
    """One contender, asked once by all users at the same time."""

    contender: str
    users: int
    number: int
    kinds: tuple[str, ...]  # of the prompts
    tokens: int  # of all answers
    seconds: float
    first_s: float  # to the first token, the mean over the users
    steps: int
    drafted: int  # tokens that devices sent, or vLLM's drafter,
    accepted: int  # and those of them that stand
    cpu_s: float  # of the server, all its processes
    other: int  # texts of devices that are not those of the first time

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def main(words: list[str] | None = None) -> int:
    exit_on_signals()
    return exit_code(lambda: _run(_arguments(words)))


def _arguments(words: list[str] | None) -> Namespace:
    parser = parser_of("vllm_engine", __doc__)
    for name, value in WHOLE.items():
        told = f"default: {value}; with --quick {QUICK[name]}"
        parser.add_argument(f"--{name}", type=type(value), default=None, help=told)
    parser.add_argument(
        "--drafters", default="", help="vLLM's own, in place of devices: ngram,suffix,draft_model"
    )
    parser.add_argument("--threads", type=int, default=1, help="of a step; default %(default)s")
    parser.add_argument("--eager", action="store_true", help="without torch.compile; a server starts sooner")
    add_quick_and_out(parser)
    found = parser.parse_args(words)
    found.eager = found.eager or found.quick
    for name, value in (QUICK if found.quick else WHOLE).items():
        setattr(found, name, value if getattr(found, name) is None else getattr(found, name))
    return found


def speculating(names: str, model: str) -> dict[str, tuple[bool, Mapping[str, object]]]:
    """Contenders with a drafter of vLLM's: each with `--opensled` and without, and its `speculative_config`. Raises
    UsageError, NotFound."""
    found = dict[str, tuple[bool, Mapping[str, object]]]()
    for name in filter(None, names.split(",")):
        if name == "suffix" and find_spec("arctic_inference") is None:
            raise UsageError("suffix needs arctic-inference 0.1.1, built for this torch: see docs/vllm.md")
        own = DRAFT_MODELS.get(model, model) if name in drafters.WITH_MODEL else ""
        folder = str(model_folder_of(own)) if own else ""
        config = drafters.speculative_config(name, folder, PROPOSED)
        found |= {f"{STOCK}, {name}": (False, config), f"{OURS}, {name}": (True, config)}
    return found


def contenders(users: Sequence[int], devices: Sequence[int], own: Sequence[str] = ()) -> dict[int, list[str]]:
    """Who takes part, by the number of users at once."""
    if own:
        return {count: [STOCK, *own] for count in users}
    return {
        count: [STOCK, *([OURS] if count in users else []), *(DEVICES if count in devices else [])]
        for count in sorted({*users, *devices})
    }


def _counts(text: str) -> list[int]:
    """Raises UsageError."""
    if not all(each.strip().isdigit() and int(each) for each in text.split(",")):
        raise UsageError(f"{text!r} are no numbers of users; name some, such as 1,8")
    return [int(each) for each in text.split(",")]


def _run(arguments: Namespace) -> int:
    origin = provenance()
    own = speculating(arguments.drafters, arguments.model)
    named = contenders(_counts(arguments.users), _counts(arguments.devices), [*own])
    folder = model_folder_of(arguments.model)
    plan = Plan(
        folder, arguments.dtype, CONTEXT, max(named), DRAFT, arguments.threads, compiled=not arguments.eager
    )
    with nullcontext() if plan.threads > 1 else pinned(CLIENT_CORE), ExitStack() as stack:
        started = _started(stack, plan, {STOCK: (False, {}), **own} if own else PAIRS)
        bench = Bench(started, _questions(folder), arguments.tokens)
        turns = [turn for count in named for turn in bench.turns(named[count], count, arguments.turns)]
    facts = {"model": arguments.model, "tokens of an answer": arguments.tokens}
    document = {"figure": "vllm_engine", **figure(plan, facts, turns).as_json(origin)}
    document["turns"] = [turn._asdict() for turn in turns]
    print("\n".join(lines(turns)))
    if out := folder_of(arguments):
        names = [arguments.model, *filter(None, arguments.drafters.split(","))]
        write_json(path := out / f"vllm_engine-{'-'.join(names)}.json", document)
        print(f"written: {path}")
    return 0


def _started(
    stack: ExitStack, plan: Plan, kinds: Mapping[str, tuple[bool, Mapping[str, object]]]
) -> dict[str, list[Server]]:
    """All servers, one after the other; two of each kind where there are two kinds."""
    found: dict[str, list[Server]] = {name: [] for name in kinds}
    for name in [*kinds, *([*kinds][::-1] if len(kinds) == 2 else [])]:
        say(f"starting {name}")
        with nullcontext() if plan.threads > 1 else pinned(SERVER_CORE):
            found[name].append(stack.enter_context(served(plan, *kinds[name])))
    return found


def _questions(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    """Prompts by kind of text, as token ids of a chat."""
    text = HFText(folder)
    return {
        kind: [text.render([ChatMessage("user", each.text)]) for each in prompts(kind, CHARACTERS)]
        for kind in KINDS
    }


class Bench:
    """The servers, and the texts that were written on each prompt so far."""

    def __init__(
        self,
        servers: Mapping[str, Sequence[Server]],
        questions: Mapping[str, Sequence[tuple[int, ...]]],
        tokens: int,
    ) -> None:
        self._servers, self._questions, self._tokens = servers, questions, tokens
        self._recordings = Recordings()

    def turns(self, names: Sequence[str], users: int, count: int) -> Iterator[Turn]:
        """All contenders with so many users, `count` times; each time another one begins."""
        for server in (server for servers in self._servers.values() for server in servers):
            by_http(server.url, self._group(users, 0))  # it warms up
        for number in range(count):
            group = self._group(users, number)
            if DEVICES.keys() & set(names):
                written = by_devices(self._servers[OURS][0].devices, group, 0.0, self._recordings)
                self._record(group, written.texts)
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

    def _record(self, group: Sequence[User], texts: Sequence[tuple[int, ...]]) -> None:
        for user, text in zip(group, texts):
            self._recordings.add(user.prompt, text)

    def _asked(self, name: str, server: Server, group: Sequence[User]) -> Heard:
        if name in DEVICES:
            return by_devices(server.devices, group, DEVICES[name][0], self._recordings)
        return by_http(server.url, group)

    def _turn(self, name: str, users: int, number: int, group: Sequence[User]) -> Turn:
        servers = self._servers[OURS if name in DEVICES else name]
        server = servers[number % len(servers)]
        before, used_s = server.counts(), server.cpu_s()
        heard = self._asked(name, server, group)
        used_s = server.cpu_s() - used_s
        steps, drafted, accepted = (now - then for now, then in zip(server.counts(), before))
        if heard.tokens != sum(user.tokens for user in group):
            raise OpenSledError(f"{name} wrote {heard.tokens} tokens for {users} users, not all of them")
        pairs = list(zip(group, heard.texts))
        other = sum(text != self._recordings.first(user.prompt) for user, text in pairs)
        self._record(group, heard.texts)
        return Turn(
            name,
            users,
            number,
            tuple(user.kind for user in group),
            heard.tokens,
            heard.seconds,
            statistics.fmean(heard.first_s),
            steps,
            heard.drafted or drafted,
            heard.accepted or accepted,
            used_s,
            other,
        )


# -- the figure -------------------------------------------------------------------------------------------


def figure(plan: Plan, facts: Mapping[str, object], turns: Sequence[Turn]) -> Figure:
    """All ratios to vLLM as it comes."""
    grouped = by_contender(turns)
    pairs = [(name, users) for name, users in grouped if name != STOCK]
    return Figure(
        title=f"`vllm serve --opensled` against `vllm serve` on {facts.get('model')}",
        unit="tokens/s",
        more_is_better=True,
        compared=COMPARED,
        loses=LOSES,
        samples={_series(*key): [turn.rate for turn in group] for key, group in grouped.items()},
        ratios=tuple(
            Comparison(_series(*key), _series(*key), _series(STOCK, key[1]), _required(*key)) for key in pairs
        ),
        label="real / replayed",
        facts={
            **facts,
            "plan": {**plan._asdict(), "model": plan.model.name},
            "intervals of 95 % over the turns": {
                _series(*key): interval(grouped[key], grouped[STOCK, key[1]]) for key in pairs
            },
            "turns": {_series(*key): summary(group) for key, group in grouped.items()},
        },
    )


def _required(name: str, users: int) -> float:
    return DEVICES[name][1] if name in DEVICES and users == 1 else REQUIRED


def by_contender(turns: Sequence[Turn]) -> dict[tuple[str, int], list[Turn]]:
    """By contender and users, in the order of the turns' numbers."""
    order = [*dict.fromkeys(turn.contender for turn in turns)]  # the first turn has them in theirs
    found: dict[tuple[str, int], list[Turn]] = {}
    for turn in sorted(turns, key=lambda turn: (turn.users, order.index(turn.contender), turn.number)):
        found.setdefault((turn.contender, turn.users), []).append(turn)
    return found


def interval(one: Sequence[Turn], other: Sequence[Turn]) -> dict[str, float]:
    """The geometric mean of the ratios, and its bootstrap interval."""
    return mean_ratio([[math.log(mine.rate / theirs.rate) for mine, theirs in zip(one, other)]])


def summary(turns: Sequence[Turn]) -> dict[str, float | None]:
    """Counts and times over all turns of a contender."""
    tokens, steps = sum(turn.tokens for turn in turns), sum(turn.steps for turn in turns)
    drafted, accepted = sum(turn.drafted for turn in turns), sum(turn.accepted for turn in turns)
    return {
        "steps": steps,
        "tokens a step": round(tokens / steps, 3),
        "ms a step": round(1000 * sum(turn.seconds for turn in turns) / steps, 3),
        "CPU of the server, us a step": round(1e6 * sum(turn.cpu_s for turn in turns) / steps),
        "first token, ms": round(1000 * statistics.fmean(turn.first_s for turn in turns), 1),
        "of draft tokens, accepted": round(accepted / drafted, 3) if drafted else None,
        "other texts": sum(turn.other for turn in turns),
    }


TOLD = ("steps", "tokens a step", "CPU of the server, us a step", "of draft tokens, accepted")


def lines(turns: Sequence[Turn]) -> list[str]:
    """A Markdown table."""
    grouped = by_contender(turns)
    rows = [_row(key, group, grouped[STOCK, key[1]]) for key, group in grouped.items()]
    return table(["users", "who", "tokens/s", "over vllm serve", "95 %", *TOLD], rows)


def _row(key: tuple[str, int], turns: Sequence[Turn], plain: Sequence[Turn]) -> list[str]:
    """`plain`: the turns of vLLM as it comes."""
    name, users = key
    told, found = summary(turns), interval(turns, plain)
    ratio = statistics.median(mine.rate / theirs.rate for mine, theirs in zip(turns, plain))
    return [
        str(users),
        name,
        f"{statistics.median(turn.rate for turn in turns):.1f}",
        f"{ratio:.3f}",
        f"{found['low']:.3f} to {found['high']:.3f}",
        *("–" if told[each] is None else str(told[each]) for each in TOLD),
    ]


def _series(name: str, users: int) -> str:
    return f"{name}, {users} user{'s'[: users - 1]}"


if __name__ == "__main__":
    sys.exit(main())
