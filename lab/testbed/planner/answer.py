"""The answer for one accelerator: what each user gets, who should draft, and how many users are held at a pace."""

import sys
from dataclasses import dataclass
from math import ceil

from hw_profiles import catalog
from lab.testbed.config import PACES, PlanConfig
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.planner import setting as settings
from lab.testbed.planner import ways
from lab.testbed.planner.binding import what_binds
from lab.testbed.planner.capacity_law import Capacity, Setting
from lab.testbed.planner.planning import (
    BITS,
    Machines,
    bits_of,
    cost_at,
    setting_of,
    usd_hour,
    work_of,
)
from lab.testbed.planner.token_cost import HOUR_S
from lab.testbed.planner.ways import Rates, Simulation

FEW = (1, 4, 16)  # users that are shown where their number is not given


@dataclass(frozen=True)
class UserRates:
    """What each of so many users gets, all of them asking at once."""

    users: int
    rates: Rates

    @property
    def best(self) -> str:
        return ways.best_way(self.rates)

    @property
    def rate(self) -> float:
        """Tokens/s of the best way."""
        return self.of(self.best)

    def of(self, way: str) -> float:
        found = self.rates[way]
        assert found is not None
        return found

    def gain(self, way: str) -> float | None:
        """Times as fast as the server alone; None = no room."""
        found = self.rates[way]
        return None if found is None else found / self.of(ways.ALONE)


@dataclass(frozen=True)
class Held:
    """Users on all machines who each keep a pace."""

    pace: float  # tokens/s
    users: dict[str, int]  # by way
    binds: str  # what limits the best way

    @property
    def best(self) -> str:
        return ways.best_way(self.users)


@dataclass(frozen=True)
class Answer:
    """What was asked, and what simulator and law say to it."""

    config: PlanConfig
    machines: Machines  # as many as are planned with
    work: settings.Work
    setting: Setting
    rates: tuple[UserRates, ...]  # from few users to many; () = not even one fits
    held: tuple[Held, ...]

    @property
    def weight_bits(self) -> float:
        return bits_of(self.config, self.machines.accelerator)

    @property
    def is_narrowed(self) -> bool:
        """Fewer bits than usual were taken, because more do not fit."""
        return not self.config.weight_bits and self.weight_bits != BITS[0]

    @property
    def places(self) -> int:
        """Users that fit in memory at a time, on all machines."""
        return self.machines.number * ways.places(self.setting, ways.ALONE)

    @property
    def lead(self) -> UserRates:
        """That of the users asked for, as far as they fit; a single one where no number is given."""
        return self.rates[-1 if self.config.users else 0]

    @property
    def usd_hour(self) -> float:
        """Of all machines."""
        return self.machines.number * usd_hour(self.config, self.setting)

    @property
    def usd_per_million_tokens(self) -> float:
        """While the users of `lead` read without a pause."""
        return 1e6 * self.usd_hour / (HOUR_S * self.lead.users * self.lead.rate)

    def needed(self, held: Held) -> int:
        """Machines for the users asked for, at that pace; 0 = no number is enough."""
        one = held.users[held.best] // self.machines.number
        return ceil(self.config.users / one) if one else 0

    def places_at(self, bits: float) -> int:
        """Users that fit on all machines with weights of so many bits."""
        cost = cost_at(self.config, self.machines.accelerator, bits)
        return self.machines.number * sessions_beside(cost, self.config.context)

    def fitting(self) -> list[str]:
        """Accelerators that have room for a user at the bits of this plan."""
        return [
            name
            for name in catalog.names("accelerators")
            if sessions_beside(cost_at(self.config, name, self.weight_bits), self.config.context)
        ]


def make_answer(config: PlanConfig, machines: Machines) -> Answer:
    """Simulate and reckon; `config` has ids of profiles. Raises NotFound or UsageError for what is not known."""
    work = work_of(config)
    setting = setting_of(config, machines.accelerator, work)
    each = ways.places(setting, ways.ALONE)
    count = machines.number or max(1, ceil(config.users / each) if each else 1)
    machines = machines._replace(number=count)
    if not each:
        return Answer(config, machines, work, setting, (), ())
    rates = tuple(_rates(config, machines, users) for users in _counts(config.users, count * each))
    paces = (config.pace,) if config.pace else PACES
    return Answer(
        config, machines, work, setting, rates, tuple(_held(setting, machines, pace) for pace in paces)
    )


def _counts(users: int, places: int) -> list[int]:
    """Numbers of users to show: one, half of them and all, as far as they fit."""
    asked = (1, ceil(users / 2), users) if users else FEW
    return sorted({min(each, places) for each in asked})


def _rates(config: PlanConfig, machines: Machines, users: int) -> UserRates:
    print(f"simulating {users} user{'s' * (users != 1)}", file=sys.stderr, flush=True)
    simulation = Simulation.of(config, machines.accelerator, ceil(users / machines.number))
    return UserRates(users, simulation.rates())


def _held(setting: Setting, machines: Machines, pace: float) -> Held:
    found = ways.held(setting, pace)
    users = {way: machines.number * each.users for way, each in found.items()}
    taken: Capacity = found[ways.best_way(users)]
    return Held(pace, users, what_binds(setting, taken, pace))
