"""How many users a cloud holds whose devices read, draft, or sit behind hubs: all of them are simulated one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from benchmarks.hierarchy_cells import DEFAULT, SMALLS, USERS, WORDS, Option, Place, figures
from opensled_testbed.fleet import Fleet
from opensled_testbed.load.load import Load
from opensled_testbed.load.slo import Slo, holds
from opensled_testbed.planner.capacity_search import largest
from opensled_testbed.simulated.hierarchy import (
    BESIDE,
    CENTRALIZED,
    FROM_DEVICE,
    FROM_HUB,
    fleet_of,
    recordings,
    traces_of,
)
from opensled_testbed.simulator import simulate

LOAD = Load(warmup=4.0, duration=8.0)
OPTIONS = (
    Option(CENTRALIZED, policy=DEFAULT),
    Option(FROM_DEVICE, (8,), small=SMALLS[0], policy=DEFAULT),
    Option(BESIDE, (8,), small=SMALLS[0], policy=DEFAULT),
    Option(FROM_HUB, (8,), policy=DEFAULT),
)


class Capacity(NamedTuple):
    """One chain for all users of one cloud, a hub for each USERS of them."""

    place: Place
    option: Option
    pace: float  # tokens/s promised

    def fleet(self, users: int) -> Fleet:
        """So many of them."""
        option = self.option
        fleet = fleet_of(self.place.tiers(option), option.path, option.lengths, option.bound, option.policy)
        count = max(1, users // USERS)
        hub = replace(fleet.hub, count=count) if fleet.hub else None
        return replace(fleet, hub=hub).of_users(users).wanting(self.pace)

    def run(self) -> dict[str, Any]:
        """The most users of whom nearly all get the pace, and what happens where all places are taken."""
        traces = traces_of(self.option.path, recordings())
        fits = self.fleet(1).server.sessions_that_fit // USERS * USERS
        full = simulate(self.fleet(fits), traces, LOAD)

        def held(several: int) -> bool:
            users = USERS * several
            result = full if users == fits else simulate(self.fleet(users), traces, LOAD)
            return holds(result, Slo(self.pace))

        most = fits // USERS
        users = USERS * (most if held(most) else largest(held, most // 2, most - 1))
        server = full.server
        return {
            **vars(self.place),
            **self.option.as_json(),
            "pace": self.pace,
            "users": users,
            "places": fits,
            "full": {
                **figures(full, fits),
                "tokens_per_s": round(server.tokens / LOAD.duration, 1),
                "busy_share": round(server.busy_s / LOAD.duration, 3),
                "server_ms_per_token": round(1000 * server.busy_s / max(1, server.tokens), 3),
            },
        }


def capacities(place: Place, pace: float) -> list[Capacity]:
    """Every chain there."""
    assert all(option.path in WORDS for option in OPTIONS), "each chain has a name"
    return [Capacity(place, option, pace) for option in OPTIONS]
