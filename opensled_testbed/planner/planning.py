"""The plan: every mode on every accelerator, by the law, and which of them to take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from hw_profiles import catalog
from hw_profiles.profiles import DeviceProfile
from opensled_testbed.baselines import BASELINES, PIPESD
from opensled_testbed.config import PlanConfig
from opensled_testbed.fleet import Fleet, Group, Server
from opensled_testbed.planner import setting as settings
from opensled_testbed.planner.binding import what_binds
from opensled_testbed.planner.capacity_law import MODES, Capacity, Setting, best
from opensled_testbed.planner.draft_source import DraftSource
from opensled_testbed.planner.thresholds import pairs
from opensled_testbed.planner.trip import mean_s
from opensled_testbed.tuning import Tuning

HOUR_S = 3600


@dataclass(frozen=True)
class Cost:
    """For a fleet as large as the capacity, all of it reading."""

    usd_per_million_tokens: float  # accelerator, and what the devices draw for drafting
    device_wh_per_1k_tokens: float  # drawn by the device while it drafts
    accelerator_wh_per_1k_tokens: float  # drawn by the accelerator at its usual power, busy all the time


def cost_of(
    found: Capacity, setting: Setting, device: DeviceProfile, pace: float, usd_hour: float, usd_kwh: float
) -> Cost | None:
    """At prices of the accelerator and of the devices' power; None if no user is served."""
    if not found.users:
        return None
    drafting_s = _drafting_s_per_token(found, setting)
    device_wh = device.busy_w.typical * drafting_s * 1000 / HOUR_S
    tokens_per_hour = found.users * pace * HOUR_S
    accelerator_wh = setting.cost.accelerator.busy_w.typical * 1000 / tokens_per_hour
    usd = usd_hour / tokens_per_hour + device_wh / 1e6 * usd_kwh
    return Cost(1e6 * usd, device_wh, accelerator_wh)


def _drafting_s_per_token(found: Capacity, setting: Setting) -> float:
    """Seconds that a device drafts for each committed token; none where the server drafts or decodes."""
    if not found.mode.startswith("sled"):
        return 0.0
    acceptance = setting.guarded if found.mode == "sled-static" else setting.acceptance
    return setting.draft_s(acceptance.drafted[found.draft_length]) / found.tokens_per_round


WORTH_IT = 1.05  # a gain below this is not worth a fleet that drafts
LEAST_WAIT = Server().draft_wait  # seconds; the server's default
SLACK = 1.5  # of a device's usual time: drafts that the server gives up on too early cost twice


@dataclass(frozen=True)
class PlanRow:
    """One mode on one accelerator."""

    accelerator: str
    found: Capacity
    binds: str
    cost: Cost | None
    usd_hour: float
    draft_wait: float  # what policies static and fcfs need as `opensled serve --draft-wait`, seconds
    tuning: Tuning | None = None  # thresholds of PipeSD

    @property
    def users(self) -> int:
        return self.found.users

    def accelerators_for(self, users: int) -> int:
        """How many of it hold that many users."""
        return ceil(users / self.users)


@dataclass(frozen=True)
class Plan:
    """What was asked and what the law says to it."""

    config: PlanConfig
    work: settings.Work
    rows: tuple[PlanRow, ...]

    @property
    def source(self) -> DraftSource:
        """The drafts that the plan assumes."""
        return DraftSource(self.config.pair, self.config.acceptance)

    def of(self, accelerator: str, mode: str) -> PlanRow:
        return next(row for row in self.rows if (row.accelerator, row.found.mode) == (accelerator, mode))

    @property
    def choice(self) -> PlanRow | None:
        """The cheapest row that serves the users there are; the simplest mode of those that cost much the same."""
        return self._cheapest(self.rows)

    @property
    def accelerators(self) -> list[str]:
        """The names, the one that holds most users first."""
        most = {row.accelerator: 0 for row in self.rows}
        for row in self.rows:
            most[row.accelerator] = max(most[row.accelerator], row.users)
        return sorted(most, key=lambda name: (-most[name], name))

    def best(self, accelerator: str) -> PlanRow | None:
        """As `choice`, on that accelerator alone; None = it serves no user."""
        return self._cheapest([row for row in self.rows if row.accelerator == accelerator])

    def _cheapest(self, rows: Sequence[PlanRow]) -> PlanRow | None:
        serving = [row for row in rows if row.users and row.found.mode in MODES]
        if not serving:
            return None
        least = min(map(self._price, serving))
        order = list(MODES)
        near = [row for row in serving if self._price(row) <= least * WORTH_IT]
        return min(near, key=lambda row: (order.index(row.found.mode), self._price(row)))

    def _price(self, row: PlanRow) -> float:
        if self.config.users:
            return row.accelerators_for(self.config.users) * row.usd_hour
        assert row.cost
        return row.cost.usd_per_million_tokens

    def gain(self, row: PlanRow) -> float:
        """Users over those of plain decoding on the same accelerator; infinite where that serves no user."""
        plain = self.of(row.accelerator, "centralized").users
        return row.users / plain if plain else float("inf")


def make_plan(config: PlanConfig) -> Plan:
    """Raises NotFound or UsageError for profiles that do not exist, and UsageError for PipeSD with made-up drafts."""
    work = settings.work_of(DraftSource(config.pair, config.acceptance))
    names = [config.accelerator] if config.accelerator else catalog.names("accelerators")
    return Plan(config, work, tuple(row for name in names for row in _rows(config, name, work)))


def fleet_of(config: PlanConfig, accelerator: str) -> Fleet:
    """One device of the plan at that accelerator."""
    server = Server(
        accelerator=accelerator, target=config.target, weight_bits=config.weight_bits, context=config.context
    )
    return Fleet(server, (Group(1, config.device, config.link, draft=config.draft),))


def baseline_fleet(fleet: Fleet, row: PlanRow) -> Fleet:
    """The fleet as `row` would run it."""
    groups = tuple(replace(group, draft_length=row.found.draft_length) for group in fleet.groups)
    server = replace(fleet.server, draft_wait=row.draft_wait)
    return BASELINES[row.found.mode](replace(fleet, groups=groups, server=server))


def _rows(config: PlanConfig, accelerator: str, work: settings.Work) -> list[PlanRow]:
    setting = settings.of_fleet(fleet_of(config, accelerator), work)
    rows = [_row(config, accelerator, setting, best(setting, mode, config.pace)) for mode in MODES]
    return [*rows, _pipesd(config, accelerator, setting)] if config.pipesd else rows


def _pipesd(config: PlanConfig, accelerator: str, setting: Setting) -> PlanRow:
    """`sled-continuous` with the best thresholds."""
    best_pair = pairs(setting, DraftSource(config.pair, config.acceptance), config.pace)[0]
    row = _row(config, accelerator, best_pair.setting, best_pair.found)
    return replace(row, found=replace(row.found, mode=PIPESD), tuning=best_pair.tuning)


def _row(config: PlanConfig, accelerator: str, setting: Setting, found: Capacity) -> PlanRow:
    profile = setting.cost.accelerator
    given = config.accelerator_usd_hour
    usd_hour = profile.hour_usd.typical if given is None else given
    device = catalog.device(config.device)
    cost = cost_of(found, setting, device, config.pace, usd_hour, config.kwh_usd)
    binds = what_binds(setting, found, config.pace)
    return PlanRow(accelerator, found, binds, cost, usd_hour, draft_wait(setting, found.draft_length))


def draft_wait(setting: Setting, length: int) -> float:
    """Seconds a server should wait for a device's draft before it decodes by itself."""
    away = setting.draft_s(length) + mean_s(setting.link)
    return max(LEAST_WAIT, round(SLACK * away, 2))
