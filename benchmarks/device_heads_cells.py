"""The cells of device_heads: a device on a link before a server, who drafts there, and one simulation of that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from hw_profiles.device_head import FLOAT32
from hw_profiles.draft_head import KINDS
from opensled_testbed.cells import REGIMES
from opensled_testbed.emulation.recorded_target import ENGINE
from opensled_testbed.fleet import Fleet, Group
from opensled_testbed.load.load import Load
from opensled_testbed.load.records import RunResult
from opensled_testbed.load.slo import Slo
from opensled_testbed.load.summary import summarise
from opensled_testbed.recordings import head_drafter, recorded_heads, recording
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import ItemTrace, Proposal, TraceSet, read_traces

PAIR = "smollm2"
SERVERS = ("hub", "dense-8k")
DEVICES = ("pi-5", "orin-nano", "laptop-cpu")
LINKS = ("wifi-good", "5g", "lte")
USERS = (1, 16)
FEW_BITS = 4.5  # of a weight in a 4-bit file with its scales; no head of devices is written so
NONE, DRAFT, SERVER, DEVICE = (
    "no drafts",
    "draft model on the device",
    "head on the server",
    "head on the device",
)
RECORDED, ALIKE = "recorded", "alike"  # where acceptance comes from
# Chance of each draft token behind right ones (docs/planning.md): Qwen3-0.6B with Qwen3-8B on mixed text; the mean of
# DSpark's five kinds of text with Llama-3.2-1B
DRAFT_CHANCE, HEAD_CHANCE = 0.76, 0.73
ALIKE_KIND, ALIKE_LENGTH = "specformer", 5  # whose form and cost a head of such acceptance is given
LENGTHS = (2, 4)  # tokens of a block of a draft model, and of a head on the server
WHOLE = 8  # a head on the device sends all that its pass has drafted
# A lonely user needs a longer window for as many answers
LOAD, QUICK_LOAD = Load(warmup=4.0, duration=10.0), Load(warmup=1.0, duration=4.0)
LOADS = {1: Load(warmup=4.0, duration=24.0)}
FIXED, DEFAULT = (
    "fcfs",
    "goodput",
)  # policies; under the default, devices and server decide how much they draft


@dataclass(frozen=True)
class Place:
    """Where users are."""

    server: str
    device: str
    link: str
    users: int

    @property
    def id(self) -> str:
        return f"{self.server}, {self.device}, {self.link}, {self.users} user{'s' * (self.users > 1)}"


class Contender(NamedTuple):
    """Who drafts, and how."""

    source: str  # RECORDED or ALIKE
    drafts: str  # NONE, DRAFT, SERVER or DEVICE
    length: int = 0
    kind: str = ""  # of a head
    bits: float = FLOAT32  # of a head on the device
    policy: str = FIXED

    @property
    def traces(self) -> TraceSet:
        if self.source == ALIKE:
            return alike(bool(self.kind))
        return recorded(head_drafter(self.kind) if self.kind else "llamacpp")

    def fleet(self, place: Place) -> Fleet:
        """The place with these drafts; the target replays its texts."""
        server = replace(REGIMES[place.server], policy=self.policy, model=PAIR, engine=ENGINE)
        group = Group(place.users, place.device, place.link, draft_length=self.length)
        if self.policy == DEFAULT:
            group = replace(group, stop="adaptive", look_ahead=self.drafts == DRAFT)
        if self.drafts == DEVICE:
            group = replace(group, drafter="head", head=self.kind, head_bits=self.bits)
        elif self.drafts != DRAFT:
            group = replace(group, drafter="none", stop="fixed", draft_length=0)
        if self.drafts == SERVER:
            server = replace(server, draft=self.kind, draft_length=self.length)
        return Fleet(server, (group,))


@cache
def recorded(drafter: str) -> TraceSet:
    return read_traces(recording(PAIR, drafter))


@cache
def alike(is_head: bool) -> TraceSet:
    """The recorded texts with drafts whose tokens each stand with the same chance, behind right ones."""
    texts = recorded("llamacpp")
    chance, longest = (HEAD_CHANCE, ALIKE_LENGTH) if is_head else (DRAFT_CHANCE, WHOLE)
    items = tuple(
        replace(trace, proposals=_drawn(trace, chance, longest), alone_ids=()) for trace in texts.items
    )
    return replace(texts, drafter=f"{ALIKE}, {chance:g}", items=items)


def _drawn(trace: ItemTrace, chance: float, longest: int) -> tuple[Proposal, ...]:
    """Of a place: the text up to a wrong token, which nothing recorded follows."""
    luck, found = random.Random(f"{trace.item} {chance}"), []
    for place in range(len(trace.target_ids)):
        right = 0
        while right < longest and luck.random() < chance:
            right += 1
        ids = list(trace.target_ids[place : place + right])
        ids += [-1 - place] * (longest - len(ids))
        found.append(Proposal(tuple(ids), (chance,) * longest))
    return tuple(found)


def sources() -> dict[str, tuple[str, ...]]:
    """Kinds of heads by the source of their acceptance: those that are recorded, and whose size is
    known (hw_profiles/draft_head.py)."""
    return {RECORDED: tuple(kind for kind in recorded_heads(PAIR) if kind in KINDS), ALIKE: (ALIKE_KIND,)}


def contenders(source: str, policy: str = FIXED) -> Iterator[Contender]:
    """All of a source: with fixed lengths, or under the default policy, which decides itself."""
    lengths = LENGTHS if policy == FIXED else (WHOLE,)
    yield from (Contender(source, DRAFT, length, policy=policy) for length in lengths)
    for kind in sources()[source]:
        yield from (Contender(source, SERVER, length, kind, policy=policy) for length in lengths)
        yield from (Contender(source, DEVICE, WHOLE, kind, bits, policy) for bits in (FLOAT32, FEW_BITS))


def places(
    servers: Sequence[str] = SERVERS,
    devices: Sequence[str] = DEVICES,
    links: Sequence[str] = LINKS,
    users: Sequence[int] = USERS,
) -> list[Place]:
    return [Place(*each) for each in _product(servers, devices, links, users)]


def _product(*several: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    if not several:
        yield ()
        return
    yield from ((first, *rest) for first in several[0] for rest in _product(*several[1:]))


class Job(NamedTuple):
    """One simulation."""

    place: Place
    contender: Contender
    load: Load

    @property
    def key(self) -> dict[str, Any]:
        """What tells it from others. A drafter on the server, and none, do not depend on the device."""
        place = asdict(self.place)
        if self.contender.drafts in (NONE, SERVER):
            place["device"] = ""
        source = "" if self.contender.drafts == NONE else self.contender.source
        return {**place, **self.contender._asdict(), "source": source, "load": asdict(self.load)}

    def run(self) -> dict[str, Any]:
        result = simulate(self.contender.fleet(self.place), self.contender.traces, self.load)
        return {**self.key, **figures(result, self.place.users)}


def jobs(cells: Iterable[tuple[Place, str]], policy: str, quick: bool) -> list[Job]:
    """Each once; `cells`: places, each with a source of acceptance."""
    found = []
    for place, source in cells:
        load = QUICK_LOAD if quick else LOADS.get(place.users, LOAD)
        own = contenders(source, policy)
        found += [Job(place, each, load) for each in (Contender(source, NONE), *own)]
    return list({repr(job.key): job for job in found}.values())


def figures(result: RunResult, users: int) -> dict[str, Any]:
    """Tokens/s of a user from question to question, delay of the first token, and what the server spent on a token.

    `pace` is tokens/s behind the first one. It flatters a head on a thin link: while the rows of the prompt hold the
    first token up, the server decodes on, and all that comes at once.
    """
    summary, server = summarise(result, Slo()), result.server
    return {
        "rate": round(summary["output_throughput"] / users, 3),
        "pace": round(summary["pace_mean"], 3),
        "first_ms": round(summary["mean_ttft_ms"], 1),
        "rows_per_token": round(server.positions / max(1, server.tokens), 3),
        "server_ms_per_token": round(1000 * server.busy_s / max(1, server.tokens), 3),
        "head_ms_per_token": round(1000 * server.drafting_s / max(1, server.tokens), 3),
        "tokens_per_round": round(summary["tokens_per_round"], 3),
        "bytes_down_per_token": round(summary["bytes_down_per_token"], 1),
    }
