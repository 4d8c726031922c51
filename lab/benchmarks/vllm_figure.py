"""The figure of `vllm_engine`: who takes part, what a turn came to, ratios and intervals over the turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import table
from lab.benchmarks.real_summary import mean_ratio
from lab.benchmarks.vllm_servers import Plan
from lab.benchmarks.vllm_users import Drafts

STOCK, OURS, STOCK_NGRAM, OURS_NGRAM = "vllm", "opensled", "vllm, ngram", "opensled, ngram"
LOOKUP = "opensled, a device with lookup"
SHARES = (0.6, 0.8)  # of the replayed draft tokens that are right
REQUIRED = 0.95  # of the tokens/s of vLLM as it comes


class Contender(NamedTuple):
    """Who serves, and who drafts on the devices."""

    server: str
    drafts: Drafts = Drafts()


def _with_devices(server: str) -> dict[str, Contender]:
    return {
        f"{server}, devices {share} (replayed)": Contender(server, Drafts("replayed", share))
        for share in SHARES
    }


CONTENDERS: Mapping[str, Contender] = {
    STOCK: Contender(STOCK),
    OURS: Contender(OURS),
    **_with_devices(OURS),
    LOOKUP: Contender(OURS, Drafts("lookup")),
    STOCK_NGRAM: Contender(STOCK_NGRAM),
    OURS_NGRAM: Contender(OURS_NGRAM),
    **_with_devices(OURS_NGRAM),
}
# What each is compared with, beside vLLM as it comes
AGAINST = {OURS: (STOCK,), OURS_NGRAM: (STOCK_NGRAM, STOCK)}


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
    drafted: int  # tokens that devices sent,
    accepted: int  # and those of them that stand
    own_drafted: int  # the same of vLLM's own drafter, tokens that were verified
    own_accepted: int
    cpu_s: float  # of the server, all its processes
    other: int  # texts that are not those of the first time

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


COMPARED = (
    "`opensled serve --engine vllm` against `vllm serve` of the same release, model, dtype, context, number of "
    "sequences and KV; prefix caches off. One core for each server with all its processes, the other one for the "
    "client, unless there are more threads. From the first question to the last token of users who all ask at the same "
    "time."
)
LOSES = (
    "Without drafts: our plan is made between two steps, in the process that computes them. Drafts that are wrong cost "
    "rows, which several users' steps have less room for."
)


def figure(plan: Plan, model: str, tokens: int, turns: Sequence[Turn]) -> Figure:
    """`model`: as it was named; `tokens`: of an answer."""
    grouped = by_contender(turns)
    samples = {_series(*key): [turn.rate for turn in group] for key, group in grouped.items()}
    pairs = list(pairs_of(grouped))
    return Figure(
        title="vLLM as the engine, against `vllm serve`",
        unit="tokens/s",
        more_is_better=True,
        compared=COMPARED,
        loses=LOSES,
        samples=samples,
        ratios=tuple(
            Comparison(
                f"{name} over {other}, {_users(users)}",
                _series(name, users),
                _series(other, users),
                REQUIRED if (name, other) == (OURS, STOCK) else None,
            )
            for name, other, users in pairs
        ),
        label="real / replayed",
        facts={
            "model": model,
            "plan": {**plan._asdict(), "model": plan.model.name},
            "tokens of an answer": tokens,
            "intervals of 95 % over the turns": {
                f"{name} over {other}, {_users(users)}": interval(grouped[name, users], grouped[other, users])
                for name, other, users in pairs
            },
            "turns": {_series(*key): summary(group) for key, group in grouped.items()},
        },
    )


def by_contender(turns: Sequence[Turn]) -> dict[tuple[str, int], list[Turn]]:
    """By contender and users, in the order of the turns' numbers."""
    found: dict[tuple[str, int], list[Turn]] = {}
    for turn in sorted(
        turns, key=lambda turn: (turn.users, [*CONTENDERS].index(turn.contender), turn.number)
    ):
        found.setdefault((turn.contender, turn.users), []).append(turn)
    return found


def pairs_of(grouped: Mapping[tuple[str, int], Any]) -> Iterator[tuple[str, str, int]]:
    """Ours and what it is compared with."""
    for name, users in grouped:
        if name in (STOCK, STOCK_NGRAM):
            continue
        server = CONTENDERS[name].server
        for other in AGAINST[server] if name == server else (server, STOCK):
            if (other, users) in grouped:
                yield name, other, users


def interval(one: Sequence[Turn], other: Sequence[Turn]) -> dict[str, float]:
    """The geometric mean of the ratios, and its bootstrap interval."""
    return mean_ratio([[math.log(mine.rate / theirs.rate) for mine, theirs in zip(one, other)]])


TOLD = (
    *("steps", "tokens a step", "CPU of the server, ms a step"),
    *("of devices' draft tokens, accepted", "of vLLM's draft tokens, accepted"),
)


def summary(turns: Sequence[Turn]) -> dict[str, float | None]:
    tokens, steps = sum(turn.tokens for turn in turns), sum(turn.steps for turn in turns)
    return {
        "steps": steps,
        "tokens a step": round(tokens / steps, 3),
        "ms a step": round(1000 * sum(turn.seconds for turn in turns) / steps, 3),
        "CPU of the server, ms a step": round(1000 * sum(turn.cpu_s for turn in turns) / steps, 3),
        "first token, ms": round(1000 * statistics.fmean(turn.first_s for turn in turns), 1),
        "of devices' draft tokens, accepted": _share(turns, "drafted", "accepted"),
        "of vLLM's draft tokens, accepted": _share(turns, "own_drafted", "own_accepted"),
        "other texts": sum(turn.other for turn in turns),
    }


def _share(turns: Sequence[Turn], of: str, accepted: str) -> float | None:
    """None where nothing was drafted."""
    drafted, stands = (sum(getattr(turn, name) for turn in turns) for name in (of, accepted))
    return round(stands / drafted, 3) if drafted else None


def lines(turns: Sequence[Turn]) -> list[str]:
    """A Markdown table."""
    head = ("users", "who", "tokens/s", "over vllm", "95 %", "steps", "tokens a step", "CPU ms a step")
    grouped = by_contender(turns)
    rows = [_row(key, group, grouped.get((STOCK, key[1]))) for key, group in grouped.items()]
    return table([*head, "accepted of devices' tokens", "of vLLM's"], rows)


def _row(key: tuple[str, int], turns: Sequence[Turn], plain: Sequence[Turn] | None) -> list[str]:
    """`plain`: the turns of vLLM as it comes."""
    name, users = key
    told = summary(turns)
    found = interval(turns, plain) if plain else None
    return [
        str(users),
        name,
        f"{statistics.median(turn.rate for turn in turns):.1f}",
        f"{found['mean']:.3f}" if found else "–",
        f"{found['low']:.3f} to {found['high']:.3f}" if found else "–",
        *("–" if told[each] is None else str(told[each]) for each in TOLD),
    ]


def _series(name: str, users: int) -> str:
    return f"{name}, {_users(users)}"


def _users(users: int) -> str:
    return f"{users} user{'s'[: users - 1]}"
