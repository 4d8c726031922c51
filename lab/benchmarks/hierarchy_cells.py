"""The cells of the hierarchy: which hub, how far from which target, and how loaded that is; every chain in each."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from lab.testbed.cells import REGIMES
from lab.testbed.fleet import Group, Hub, Server
from lab.testbed.load.load import Load
from lab.testbed.load.records import RunResult
from lab.testbed.planner.hierarchy_site import Path
from lab.testbed.simulated.compare import throughput
from lab.testbed.simulated.hierarchy import (
    BESIDE,
    CENTRALIZED,
    FROM_DEVICE,
    FROM_HUB,
    MIDDLE_BESIDE,
    SMALL_ON_HUB,
    THREE_TIERS,
    Recordings,
    Tiers,
    rate,
    recordings,
    simulate_chain,
)
from opensled.core.errors import UsageError

HUBS = ("orin-nano-super", "agx-orin", "strix-halo")
ROUND_TRIPS = (20, 60, 150)  # ms between hub and server: links wan-20 and so on
TARGETS = {
    "dense-8b-8k": Server(accelerator="h100", target="dense-8b", context=8192),
    "dense-8k": REGIMES["dense-8k"],
    "moe": REGIMES["moe"],
}
LOADS = {"light": 0.0, "heavy": 0.85}  # share of the server's places that others hold, who read all the time
USERS = 2  # of one hub
MIDDLES = ("draft-1.5b", "draft-3b")  # models of the hub, at 4 bits
BITS = 4.0
DEVICE, HOME = "orin-nano-super", "wifi-good"
SMALLS = ("135m", "0.5b")  # models of the device
WORDS = {
    CENTRALIZED: "target alone",
    FROM_DEVICE: "device drafts",
    BESIDE: "draft beside the target",
    MIDDLE_BESIDE: "middle model beside the target",
    FROM_HUB: "hub alone drafts",
    SMALL_ON_HUB: "hub drafts with the device's model",
    THREE_TIERS: "device, hub and target",
}


class Option(NamedTuple):
    """One chain with its lengths and models."""

    path: Path
    lengths: tuple[int, ...] = ()
    middle: str = MIDDLES[0]
    small: str = SMALLS[1]
    bound: float = 0.4
    policy: str = "fcfs"  # which waits for drafts of these lengths; by "goodput" they are the longest

    def as_json(self) -> dict[str, Any]:
        """What of it says anything."""
        models = {model for model, _ in self.path}
        told: dict[str, Any] = {
            "chain": WORDS[self.path],
            "policy": self.policy,
            "blocks": list(self.lengths),
        }
        told |= {"middle": self.middle} if "middle" in models else {}
        told |= {"small": self.small} if "draft" in models else {}
        return told | ({"bound": self.bound} if ("middle", "hub") in self.path else {})


DEFAULT = "goodput"  # the default policy of servers and relays


def at_the_server() -> Iterator[Option]:
    """Chains that draft there: the target's stream hides how far it is."""
    for small in SMALLS:
        yield from (Option(BESIDE, (length,), small=small) for length in (2, 4))
        yield Option(BESIDE, (8,), small=small, policy=DEFAULT)
    yield from (Option(MIDDLE_BESIDE, (4,), middle) for middle in MIDDLES)
    yield Option(MIDDLE_BESIDE, (8,), policy=DEFAULT)


def from_devices() -> Iterator[Option]:
    """Chains past the hub."""
    yield Option(CENTRALIZED)
    for small in SMALLS:
        yield from (Option(FROM_DEVICE, (length,), small=small) for length in (2, 4))
    yield Option(FROM_DEVICE, (8,), small=SMALLS[0], policy=DEFAULT)


def over_hubs() -> Iterator[Option]:
    """Chains with a relay in them."""
    small, large = MIDDLES
    yield from (Option(FROM_HUB, (length,), small) for length in (4, 8))
    yield Option(FROM_HUB, (4,), large)
    yield from (Option(FROM_HUB, (8,), middle, policy=DEFAULT) for middle in MIDDLES)
    yield Option(SMALL_ON_HUB, (4,), small=SMALLS[1])
    yield from (Option(THREE_TIERS, (8, 4), middle, SMALLS[0]) for middle in MIDDLES)
    yield Option(THREE_TIERS, (8, 2), large, SMALLS[1])
    yield Option(THREE_TIERS, (8, 4), large, SMALLS[0], policy=DEFAULT)


@dataclass(frozen=True)
class Place:
    """A server with its load and, where it says so, how far away, and a hub."""

    target: str
    load: str
    rtt_ms: int = ROUND_TRIPS[0]
    hub: str = HUBS[-1]

    @property
    def server(self) -> Server:
        """With the others at it."""
        server = TARGETS[self.target]
        return replace(server, others=round(LOADS[self.load] * server.sessions_that_fit))

    def tiers(self, option: Option) -> Tiers:
        """All that takes part, in the models of `option`."""
        server = self.server
        hub = Hub(accelerator=self.hub, weight_bits=BITS, context=server.context, link=f"wan-{self.rtt_ms}")
        device = Group(USERS, DEVICE, HOME, draft=option.small)
        return Tiers(server, replace(hub, target=option.middle), device)


class Job(NamedTuple):
    """One simulation."""

    place: Place
    option: Option
    load: Load

    def run(self) -> dict[str, Any] | None:
        """An entry; None where a model finds no room."""
        try:
            tiers = self.place.tiers(self.option)
            option = self.option
            result = simulate_chain(
                tiers, option.path, option.lengths, _recorded(), option.bound, self.load, option.policy
            )
        except UsageError:
            return None
        return self.option.as_json() | figures(result, USERS)


@cache
def _recorded() -> Recordings:
    return recordings()


def figures(result: RunResult, users: int) -> dict[str, Any]:
    """Of the fleet's own users, tokens/s of one of them: while an answer comes, and with the wait for its first token.
    Prompts are among the positions."""
    server = result.server
    return {
        "rate": round(rate(result), 2),
        "with_waiting": round((throughput(result) or 0.0) / users, 2),
        "positions_per_token": round(server.positions / max(1, server.tokens), 3),
        "tokens_per_step": round(server.tokens / max(1, server.step_sessions), 3),
        "vetted_per_token": round(result.hubs.tokens / max(1, server.tokens), 3),
    }


def jobs(targets: tuple[str, ...], hubs: tuple[str, ...], trips: tuple[int, ...], load: Load) -> list[Job]:
    """Every simulation once: what does not depend on a hub is shared by the cells of all hubs."""
    found = []
    for target in targets:
        for name in LOADS:
            found += [Job(Place(target, name), option, load) for option in at_the_server()]
            for trip in trips:
                found += [Job(Place(target, name, trip), option, load) for option in from_devices()]
                for hub in hubs:
                    found += [Job(Place(target, name, trip, hub), option, load) for option in over_hubs()]
    return found
