"""The cells of look_ahead: what is compared there, what the law expects, and the best fixed draft length.

The law's word is a pure function of profiles and recorded drafts: it is written down before anything is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import floor
from statistics import fmean
from typing import Any

from benchmarks.program import mapped
from opensled_testbed.baselines import centralized
from opensled_testbed.cells import REGIMES
from opensled_testbed.fleet import Fleet, Group
from opensled_testbed.load.load import Load
from opensled_testbed.planner.capacity_law import Setting
from opensled_testbed.planner.planning import draft_wait
from opensled_testbed.planner.setting import of_fleet, recorded
from opensled_testbed.planner.trip import mean_s, slowest_s
from opensled_testbed.recordings import BUNDLED
from opensled_testbed.simulated.compare import throughput
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import TraceSet, read_traces

BANDWIDTH_POOR, DENSE = "hub", "dense-8k"
DEVICES = ("pi-5", "orin-nano-super", "laptop-cpu")
LINKS = ("wifi-good", "5g", "lte")
USERS = 8
PLAIN, ADAPTIVE, EVERYTHING, CENTRALIZED = "plain", "adaptive", "all", "centralized"
CONTENDERS = (PLAIN, ADAPTIVE, EVERYTHING)  # that need devices
PLAIN_LENGTHS = (2, 4, 8)  # of plain SLED, which gets the best of them by the law
LAW_LENGTHS = range(1, 9)  # draft lengths that the law looks at
LONGEST = 12  # draft tokens of an adaptive block at most
EXPECTED = 1.5  # times plain SLED: where the law expects as much, it must be reached
# Real seconds for each emulated one: with eight users a step's real work stays below a fifth of it on two cores.
DILATION = {BANDWIDTH_POOR: 1.5, DENSE: 2.5}


@dataclass(frozen=True)
class Cell:
    """Eight equal devices at one server."""

    regime: str
    device: str
    link: str

    @property
    def id(self) -> str:
        return f"{self.regime}, {self.device}, {self.link}"

    def fleet(self, contender: str, length: int) -> Fleet:
        """`length`: of the blocks of plain SLED."""
        group = Group(USERS, self.device, self.link, draft_length=length)
        fleet = Fleet(REGIMES[self.regime], (group,), DILATION[self.regime])
        if contender == CENTRALIZED:
            return centralized(fleet)
        if contender == PLAIN:
            return replace(fleet, server=replace(fleet.server, policy="static"))
        adaptive = replace(group, stop="adaptive", draft_length=LONGEST, look_ahead=contender == EVERYTHING)
        return served_by("goodput", replace(fleet, groups=(adaptive,)))


def served_by(policy: str, fleet: Fleet) -> Fleet:
    return replace(fleet, server=replace(fleet.server, policy=policy))


def cells() -> Iterator[Cell]:
    """All eighteen; those that share a server and a link follow each other."""
    for regime in (BANDWIDTH_POOR, DENSE):
        for link in LINKS:
            for device in DEVICES:
                yield Cell(regime, device, link)


@dataclass(frozen=True)
class Word:
    """What the law says of one cell, tokens/s of one user."""

    plain_length: int
    plain: float
    centralized: float
    length: int  # with which drafting pays most, 0 = not at all
    everything: float

    @property
    def gain(self) -> float:
        """Over plain SLED."""
        return self.everything / self.plain

    def as_json(self) -> dict[str, Any]:
        ratios = {"over_plain": self.gain, "over_centralized": self.everything / self.centralized}
        rounded = {name: round(value, 3) for name, value in {**vars(self), **ratios}.items()}
        return {**rounded, "expected": self.gain >= EXPECTED}


def law(cell: Cell, traces: TraceSet) -> Word:
    """Best lengths and their paces; the server of `all` decodes where drafting does not pay."""
    setting = of_fleet(cell.fleet(PLAIN, 1), recorded(traces))
    alone = 1 / setting.step_s(USERS, 0, 1)
    plain = {length: _plain(setting, length) for length in PLAIN_LENGTHS}
    ahead = {0: alone} | {length: _ahead(setting, length) for length in LAW_LENGTHS}
    shortest, best = max(plain, key=plain.__getitem__), max(ahead, key=ahead.__getitem__)
    return Word(shortest, plain[shortest], alone, best, ahead[best])


def _plain(setting: Setting, length: int) -> float:
    """All eight in lockstep with the slowest, blocks padded, prompts in steps of their own (law.sled_static)."""
    tokens, bare = setting.acceptance.tokens[length], replace(setting, prompt=0.0)
    away = setting.draft_s(length) + slowest_s(setting.link, USERS)
    step_s = bare.step_s(USERS, length, tokens) + setting.prompts_step_s(USERS, tokens)
    return tokens / (away + step_s)


def _ahead(setting: Setting, length: int) -> float:
    """A session is away, waits for the step under way, and joins those that arrived meanwhile in one; a bet that is
    won saves the drafting for which waiting and verifying left time (law.sled_continuous)."""
    tokens, trip = setting.acceptance.tokens[length], mean_s(setting.link)
    longer = min(length + 1, len(setting.acceptance.tokens) - 1)
    # Share of rounds whose block stands and whose bonus token was guessed: one more accepted token than it has.
    won = setting.acceptance.tokens[longer] - setting.acceptance.tokens[longer - 1]
    each = setting.draft_s(1)

    def round_s(together: float) -> tuple[float, float]:
        step_s = setting.step_s(max(1.0, together), length, tokens)
        bare = trip + length * each
        waits = min(1.0, together) * max(step_s / 2, step_s - bare)
        ready = min(length, max(0, floor((trip + waits + step_s) / each) - 1))
        return bare - won * ready * each + waits + step_s, step_s

    together = float(USERS)
    for _ in range(50):  # n = m T / t, whose right side grows with m: half steps towards it converge
        whole, step_s = round_s(together)
        together = (together + USERS * step_s / whole) / 2
    return tokens / round_s(together)[0]


# -- the best fixed length of a cell, by trying all of them in the simulator; beside it the adaptive rule --

POLICIES = ("goodput", "fcfs")  # the server that advises, and one that takes every length as it comes


@dataclass(frozen=True)
class Effort:
    """How long is simulated, in tokens that plain decoding writes for each user, and with how many seeds."""

    warmup: float = 100.0
    tokens: float = 600.0
    seeds: int = 3
    lengths: tuple[int, ...] = tuple(range(LONGEST + 1))


FULL = Effort()


def search(chosen: Sequence[Cell], effort: Effort, workers: int) -> list[dict[str, Any]]:
    """An entry of the document for each cell; on so many processes, 1 = on this one."""
    return list(mapped(partial(_searched, effort), chosen, workers))


def _searched(effort: Effort, cell: Cell) -> dict[str, Any]:
    adaptive = cell.fleet(EVERYTHING, 0)
    step_s = of_fleet(adaptive, recorded(_traces())).step_s(USERS, 0, 1)
    load = Load(warmup=round(effort.warmup * step_s, 2), duration=round(effort.tokens * step_s, 2))
    fixed = {
        policy: [_rate(_fixed(cell, policy, length), load, effort.seeds) for length in effort.lengths]
        for policy in POLICIES
    }
    rate = _rate(adaptive, load, effort.seeds)
    best, policy, length = max(
        (each, policy, length)
        for policy, rates in fixed.items()
        for length, each in zip(effort.lengths, rates)
    )
    return {
        "id": cell.id,
        "lengths": [*effort.lengths],
        "fixed": fixed,
        "best": best,
        "best_length": length,
        "best_policy": policy,
        "adaptive": rate,
        "share": round(rate / best, 4),
    }


def _fixed(cell: Cell, policy: str, length: int) -> Fleet:
    """Blocks of `length`, drafted ahead as well; `fcfs` waits for them as the planner advises."""
    fleet = cell.fleet(EVERYTHING, 0)
    group = replace(fleet.groups[0], stop="fixed", draft_length=length)
    fleet = served_by(policy, replace(fleet, groups=(group,)))
    wait = draft_wait(of_fleet(fleet, recorded(_traces())), length)
    return replace(fleet, server=replace(fleet.server, draft_wait=wait)) if policy == "fcfs" else fleet


@cache
def _traces() -> TraceSet:
    return read_traces(BUNDLED)


def _rate(fleet: Fleet, load: Load, seeds: int) -> float:
    """Tokens/s of a user, a mean over seeds."""
    found = [throughput(simulate(fleet, _traces(), replace(load, seed=seed))) for seed in range(seeds)]
    return round(fmean(rate or 0.0 for rate in found) / USERS, 3)
