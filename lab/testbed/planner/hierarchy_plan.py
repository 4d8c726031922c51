"""The best chain of models over device, hub and cloud, beside every other path, for one site."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from hw_profiles import catalog
from hw_profiles.speculation import LONGEST, WORTH
from hw_profiles.step_cost import TargetCost
from lab.testbed.config import PlanConfig
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.planner.comparison import compare
from lab.testbed.planner.hierarchy import Chain
from lab.testbed.planner.hierarchy_drafts import of_rates, recorded
from lab.testbed.planner.hierarchy_site import Path, Site, TierDrafts, path_of
from lab.testbed.planner.hub_link import hub_rtt_s
from lab.testbed.planner.planning import bits_of, cost_at
from lab.testbed.planner.task_acceptance import rates_of
from opensled.core.errors import UsageError

MAX_OTHERS = 4096.0  # sessions in a step: more than any server holds
NEAR = 1e-3  # relative width at which a search for a load ends


@dataclass(frozen=True)
class PathRow:
    """One path with its best lengths."""

    chain: Chain  # at the load that the plan asks about
    rate: float  # tokens/s of a user there
    users: int  # that the server holds at the promised pace, each with a hub of its own

    @property
    def path(self) -> Path:
        return path_of(self.chain)

    @property
    def depth(self) -> int:
        """Models that draft: 0 of the target alone, 1 of a single draft, 2 and more of a hierarchy."""
        return len(self.chain.edges)


@dataclass(frozen=True)
class HierarchyPlan:
    """What was asked and what the law says to it."""

    config: PlanConfig
    accelerator: str  # of the server
    site: Site  # with no other users
    rows: tuple[PathRow, ...]  # the fastest first

    @cached_property
    def best(self) -> PathRow:
        """The fastest row; of those that are much the same the one with the fewest models."""
        top = self.rows[0].rate
        near = [row for row in self.rows if row.rate * WORTH >= top]
        return min(near, key=lambda row: (row.depth, -row.rate))

    def fastest(self, least: int, most: int) -> PathRow | None:
        """Of the rows with that many models that draft; None = there are none."""
        return next((row for row in self.rows if least <= row.depth <= most), None)


def make_hierarchy_plan(config: PlanConfig) -> HierarchyPlan:
    """Raises NotFound or UsageError for profiles that do not exist, and UsageError where no server has room."""
    accelerator = config.accelerator or _planned(config)
    site = site_of(config, accelerator)
    if not sessions_beside(site.server, config.context):
        raise UsageError(
            f"{config.target} at {bits_of(config, accelerator):g} bits and a conversation of {config.context} "
            f"positions do not fit on {accelerator}; take fewer --weight-bits, a shorter --context or a larger "
            "--accelerator"
        )
    return HierarchyPlan(config, accelerator, site, tuple(_rows(site, config)))


def site_of(config: PlanConfig, accelerator: str) -> Site:
    """The plan's device, hub and server."""
    hub = TargetCost(
        catalog.accelerator(config.hub), catalog.target(config.hub_model).at(config.hub_weight_bits)
    )
    catalog.device(config.devices).draft(config.draft)  # raises UsageError naming the sizes there are
    return Site(
        device=catalog.device(config.devices),
        draft=config.draft,
        link=catalog.link(config.link),
        hub=hub,
        hub_rtt_s=hub_rtt_s(config.hub_link),
        server=cost_at(config, accelerator, bits_of(config, accelerator)),
        context=config.context,
        drafts=drafts_of(config),
        longest=LONGEST,
        answer=config.answer,
    )


def drafts_of(config: PlanConfig) -> TierDrafts:
    """How often the three models agree: as given, else as recorded."""
    if not config.acceptance and config.hub_acceptance is None:
        return recorded()
    if not config.acceptance or config.hub_acceptance is None:
        raise UsageError(
            "--acceptance says nothing of a hub, and --hub-acceptance nothing of devices: give both"
        )
    return of_rates(rates_of(config.acceptance)[0], config.hub_acceptance, config.draft_acceptance)


def _planned(config: PlanConfig) -> str:
    """The accelerator of the plan without hubs."""
    rows = compare(config).rows
    if not rows:
        raise UsageError(
            f"no accelerator serves {config.target} at {config.promised:g} tokens/s; name one with --accelerator, or "
            "ask for a lower --pace, fewer --weight-bits or a shorter --context"
        )
    return rows[0].accelerator


def _rows(site: Site, config: PlanConfig) -> list[PathRow]:
    rows = [_row(site, path, config) for path in paths(site)]
    return sorted(rows, key=lambda row: -row.rate)


def _row(site: Site, path: Path, config: PlanConfig) -> PathRow:
    chain = along(_shared(site, path, config.users), path)
    return PathRow(chain, site.rate(chain), capacity(site, path, config.promised))


def paths(site: Site) -> list[Path]:
    """All there are, from the target down; the target alone comes first."""
    return list(dict.fromkeys(map(path_of, site.hierarchy.chains())))


def along(site: Site, path: Path) -> Chain:
    """That path with the lengths that make it fastest."""
    hierarchy = site.hierarchy
    members = tuple(each for each in hierarchy.candidates if (each.model, each.place) in path)
    chains = replace(hierarchy, candidates=members).chains()
    return max((each for each in chains if path_of(each) == path), key=site.rate)


def _shared(site: Site, path: Path, users: int) -> Site:
    """Where so many users, all of them on that path, share the server."""
    if users <= 1:
        return site
    return site.shared(_last(lambda loaded: loaded.users(along(loaded, path)) <= users, site))


def capacity(site: Site, path: Path, pace: float) -> int:
    """Users that the server can hold at `pace` tokens/s each, if all of them use that path; 0 = none."""
    if site.rate(along(site, path)) < pace:
        return 0
    loaded = site.shared(_last(lambda each: each.rate(along(each, path)) >= pace, site))
    return int(min(loaded.users(along(loaded, path)), site.places(path)))


def _last(holds: Callable[[Site], bool], site: Site) -> float:
    """The largest load of other sessions at which it holds."""
    low, high = 0.0, 1.0
    while high < MAX_OTHERS and holds(site.shared(high)):
        low, high = high, 2 * high
    while high - low > NEAR * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(site.shared(middle)) else (low, middle)
    return low
