"""The plan: every mode on every accelerator, by the law, and which of them to take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from hw_profiles import catalog
from opensled_testbed.baselines import BASELINES, PIPESD, SERVER_SD
from opensled_testbed.config import MODEL, PlanConfig
from opensled_testbed.fleet import Fleet, Group, Server
from opensled_testbed.planner import setting as settings
from opensled_testbed.planner.binding import what_binds
from opensled_testbed.planner.capacity_law import MODES, Capacity, Setting, best
from opensled_testbed.planner.draft_source import DraftSource
from opensled_testbed.planner.thresholds import pairs
from opensled_testbed.planner.token_cost import Cost, PlanPrices, cost_of
from opensled_testbed.planner.tradeoff import TradeOff, best_offer, offers, trade_off
from opensled_testbed.planner.trip import mean_s
from opensled_testbed.tuning import Tuning

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
    pace: float  # tokens/s of each user: the promised pace, or a faster one that the objective takes
    plain: int  # users that the server's own decoding holds at that pace
    value: float = 0.0  # by the objective, for comparisons; 0 = no objective is named
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
        """The best row that serves the users there are: by the objective, or without one the cheapest. Of those that
        are much the same the one with the simplest mode."""
        return self._best(self.rows)

    @property
    def accelerators(self) -> list[str]:
        """The names, the one that holds most users first."""
        most = {row.accelerator: 0 for row in self.rows}
        for row in self.rows:
            most[row.accelerator] = max(most[row.accelerator], row.users)
        return sorted(most, key=lambda name: (-most[name], name))

    def best(self, accelerator: str) -> PlanRow | None:
        """As `choice`, on that accelerator alone; None = it serves no user."""
        return self._best([row for row in self.rows if row.accelerator == accelerator])

    def _best(self, rows: Sequence[PlanRow]) -> PlanRow | None:
        serving = [row for row in rows if row.users and row.found.mode in MODES]
        if not serving:
            return None
        least = min(map(self._price, serving))
        order = list(MODES)
        near = [row for row in serving if self._price(row) <= least * WORTH_IT]
        return min(near, key=lambda row: (order.index(row.found.mode), self._price(row)))

    def _price(self, row: PlanRow) -> float:
        """What is to be small."""
        if self.config.objective:
            return 1 / row.value
        if self.config.users:
            return row.accelerators_for(self.config.users) * row.usd_hour
        assert row.cost
        return row.cost.usd_per_million_tokens

    def gain(self, row: PlanRow) -> float:
        """Users over those of plain decoding at the same pace; infinite where that serves no user."""
        return row.users / row.plain if row.plain else float("inf")


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


def beside(config: PlanConfig) -> str:
    """The baseline with what drafts beside the target."""
    return SERVER_SD if config.drafter == MODEL else f"{SERVER_SD}-{config.drafter}"


def setting_of(config: PlanConfig, accelerator: str, work: settings.Work) -> Setting:
    """What the law is asked about the plan on that accelerator."""
    return settings.of_fleet(fleet_of(config, accelerator), work, beside(config))


def baseline_fleet(config: PlanConfig, row: PlanRow) -> Fleet:
    """The fleet as `row` would run it."""
    fleet = fleet_of(config, row.accelerator)
    groups = tuple(replace(group, draft_length=row.found.draft_length) for group in fleet.groups)
    server = replace(fleet.server, draft_wait=row.draft_wait)
    name = beside(config) if row.found.mode == SERVER_SD else row.found.mode
    return BASELINES[name](replace(fleet, groups=groups, server=server))


def _rows(config: PlanConfig, accelerator: str, work: settings.Work) -> list[PlanRow]:
    setting = setting_of(config, accelerator, work)
    prices = prices_of(config, setting)
    rows = [_row(config, setting, mode, prices) for mode in MODES]
    return [*rows, _pipesd(config, setting, prices)] if config.pipesd else rows


def _pipesd(config: PlanConfig, setting: Setting, prices: PlanPrices) -> PlanRow:
    """`sled-continuous` with the best thresholds."""
    best_pair = pairs(setting, DraftSource(config.pair, config.acceptance), config.pace)[0]
    row = _row_of(best_pair.setting, best_pair.found, prices, config.pace)
    return replace(row, found=replace(row.found, mode=PIPESD), tuning=best_pair.tuning)


def prices_of(config: PlanConfig, setting: Setting) -> PlanPrices:
    """The prices that were given, and the accelerator's where its own was not."""
    given = config.accelerator_usd_hour
    usd_hour = setting.cost.accelerator.hour_usd.typical if given is None else given
    return PlanPrices(usd_hour, config.kwh_usd, config.gb_usd, catalog.device(config.device))


def _row(config: PlanConfig, setting: Setting, mode: str, prices: PlanPrices) -> PlanRow:
    """Of a mode on an accelerator: at the promised pace, or what the objective takes of all that keep it."""
    found, pace, value = best(setting, mode, config.pace), config.pace, 0.0
    if config.objective:
        served = list(offers(setting, mode, prices, config.pace, config.users))
        offer = best_offer(served, config.objective)
        if offer is not None:
            found, pace, value = offer.found, offer.pace, offer.value(config.objective)
    return replace(_row_of(setting, found, prices, pace), value=value)


def _row_of(setting: Setting, found: Capacity, prices: PlanPrices, pace: float) -> PlanRow:
    return PlanRow(
        accelerator=setting.cost.accelerator.id,
        found=found,
        binds=what_binds(setting, found, pace),
        cost=cost_of(found, setting, prices, pace),
        usd_hour=prices.usd_hour,
        draft_wait=draft_wait(setting, found.draft_length),
        pace=pace,
        plain=best(setting, "centralized", pace).users,
    )


def trade_off_of(plan: Plan, accelerator: str) -> TradeOff:
    """What faster reading costs on that accelerator."""
    setting = setting_of(plan.config, accelerator, plan.work)
    return trade_off(setting, prices_of(plan.config, setting), plan.config.pace)


def draft_wait(setting: Setting, length: int) -> float:
    """Seconds a server should wait for a device's draft before it decodes by itself."""
    away = setting.draft_s(length) + mean_s(setting.link)
    return max(LEAST_WAIT, round(SLACK * away, 2))
