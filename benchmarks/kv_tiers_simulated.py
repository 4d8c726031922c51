"""Sessions held at a pace by a GPU server whose KV memory is too small for all, simulated: by profiles, and the
product's own code for blocks, preemption, host tier and policy; nothing here ran on a GPU.

Each device drafts a chain, its draft travels, the verdict comes back: all in a fixed time, so that nothing but memory
and the server's own time decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf
from typing import Any, NamedTuple

from benchmarks.program import say
from hw_profiles import catalog
from hw_profiles.step_cost import HardwareProfile, TargetCost
from opensled.messages import Draft, DraftBlock, DraftToken, ServerMessage, Verdict
from opensled_testbed.emulation.step_law import StepLaw
from opensled_testbed.fleet import Wish
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.sequences import Script
from opensled_testbed.simulated.tiered import Memory, TieredServer
from opensled_testbed.traces import ItemTrace
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from scheduler.plan import SchedulingPolicy
from verify_server.session import Session

ACCELERATOR, TARGET = "h100", "dense-8b"
CONTEXT = 8192  # tokens of each prompt
ANSWER = 4000  # tokens, more than any run sees
ACCEPTANCE = 0.75  # of each draft token
DRAFT = 4  # tokens of a draft at most; the policy may ask for fewer
AWAY_S = 0.5  # from a verdict that leaves to the draft that follows
STEP_TOKENS = 2048
WINDOW_S = 10.0  # that is measured, after all prompts are read and SETTLE_S more
SETTLE_S = 5.0
POLICIES: dict[str, SchedulingPolicy] = {"fcfs": Fcfs(inf), "goodput": Goodput(AWAY_S)}
HELD = 0.95  # share of the sessions that must have the pace


@dataclass
class Device:
    """`opensled_testbed.simulated.server.Reader`: drafts whenever a verdict comes that asks for it."""

    events: Events
    submit: Callable[[tuple[Session, Draft]], None]
    script: Script
    chance: random.Random
    wish: Wish
    session: Session | None = None
    length: int = CONTEXT
    counter: int = 0
    drafting: bool = False  # or its draft is under way
    times: list[tuple[float, int]] = field(
        default_factory=list
    )  # when a verdict came, and the text's length then

    def refused(self) -> None:
        raise AssertionError("there are places for all")

    def opened(self, session: Session) -> None:
        self.session = session

    def told(self, message: ServerMessage) -> None:
        assert isinstance(message, Verdict)
        self.length = max(self.length, message.base + len(message.tokens))
        self.times.append((self.events.now, self.length))
        if self.counter and message.answers == self.counter:
            self.drafting = False
        if not self.drafting and message.hint != 0:
            self.drafting = True
            self.events.at(self.events.now + AWAY_S, self._draft, min(DRAFT, message.hint or DRAFT))

    def _draft(self, most: int) -> None:
        ids: list[int] = []
        place = self.length - CONTEXT
        while len(ids) < most:
            right = self.chance.random() < ACCEPTANCE
            ids.append(self.script.trace.target_ids[place + len(ids)] if right else 1)
            if not right:
                break
        self.counter += 1
        block = DraftBlock(self.length, tuple(map(DraftToken, ids)))
        assert self.session is not None
        self.submit((self.session, Draft(self.counter, block)))

    def rate(self, begin: float, end: float) -> float:
        """Tokens a second that came within that time."""
        lengths = [length for time, length in self.times if time <= begin][-1:] or [CONTEXT]
        last = [length for time, length in self.times if time <= end][-1:] or lengths
        return (last[0] - lengths[0]) / (end - begin)


@cache
def _script() -> Script:
    chance = random.Random(0)
    text = tuple(chance.randrange(20, 2000) for _ in range(ANSWER))
    trace = ItemTrace("item", (7,) * CONTEXT, text, "length", ())
    return Script(trace, ANSWER)


def target() -> TargetCost:
    return TargetCost(catalog.accelerator(ACCELERATOR), catalog.target(TARGET))


def run(users: int, memory: Memory, policy: str, window_s: float) -> dict[str, Any]:
    """What so many sessions get of a server with that memory."""
    events, law = Events(), StepLaw(target())
    profile = HardwareProfile(STEP_TOKENS, law.cost)
    server = TieredServer(events, memory, law, POLICIES[policy], users, profile=profile)
    devices = [
        Device(events, server.submit, _script(), random.Random(number), Wish()) for number in range(users)
    ]
    read_s = CONTEXT / STEP_TOKENS * profile.cost.verify_s(STEP_TOKENS, CONTEXT / 2, 1)
    for number, device in enumerate(devices):
        events.at(number * 1.5 * read_s, server.open, device)
    begin = users * 1.5 * read_s + SETTLE_S
    events.run(begin)
    restored, preempted = _moved(server)
    events.run(begin + window_s)
    rates = sorted(device.rate(begin, begin + window_s) for device in devices)
    return {
        "sessions": users,
        "rate_of_the_slowest_held": round(rates[int((1 - HELD) * users)], 3),
        "tokens_s": round(sum(rates), 1),
        "preempted": server.preempted - preempted,
        "restored": _moved(server)[0] - restored,
    }


def _moved(server: TieredServer) -> tuple[int, int]:
    return server.tier.stats.restored if server.tier else 0, server.preempted


def held(rows: Sequence[dict[str, Any]], pace: float) -> int:
    """The most sessions, of those that were tried, of which HELD have the pace; with all smaller numbers as well."""
    most = 0
    for row in rows:
        if row["rate_of_the_slowest_held"] < pace:
            break
        most = row["sessions"]
    return most


class Contender(NamedTuple):
    """A server; `bus_gb_s`: of copies each way, 0 = there is no second tier."""

    name: str
    bus_gb_s: float
    policy: str = "fcfs"


CONTENDERS = (
    Contender("one tier", 0),
    Contender("two tiers, 55 GB/s (PCIe 5)", 55),
    Contender("two tiers, 25 GB/s (PCIe 4)", 25),
    Contender("two tiers, 6 GB/s", 6),
    Contender("one tier, goodput", 0, "goodput"),
    Contender("two tiers, 55 GB/s, goodput", 55, "goodput"),
)
PACES = (2.0, 3.0, 5.0)  # tokens/s
TRIED = (48, 56, 64, 80, 96, 112, 128)  # sessions
HOST_TOKENS = 256 * CONTEXT  # 274 GB


def measure(quick: bool) -> dict[str, Any]:
    """Of each contender what its sessions get, up to the number at which they no longer have the least pace."""
    law = target()
    rows: dict[str, list[dict[str, Any]]] = {}
    for contender in CONTENDERS[:2] if quick else CONTENDERS:
        host = HOST_TOKENS if contender.bus_gb_s else 0
        memory = Memory(law.kv_positions(), law.kv_bytes, host, contender.bus_gb_s or 1.0)
        tried = rows[contender.name] = []
        for users in (2,) if quick else TRIED:
            tried.append(run(users, memory, contender.policy, 1.0 if quick else WINDOW_S))
            say(f"{contender.name}: {tried[-1]}")
            if tried[-1]["rate_of_the_slowest_held"] < PACES[0]:
                break
    return {
        "label": "simulated",
        "accelerator": ACCELERATOR,
        "target": TARGET,
        "context": CONTEXT,
        "sessions_that_fit": law.sessions_that_fit(CONTEXT),
        "rows": rows,
        "held": {name: {f"{pace:g}": held(tried, pace) for pace in PACES} for name, tried in rows.items()},
    }
