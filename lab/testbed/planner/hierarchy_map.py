"""The map of chains: which path is fastest over hubs, their distance from the server, and the load of the server."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hw_profiles import catalog
from hw_profiles.step_cost import TargetCost
from lab.testbed.emulation.draft_head import sessions_beside
from lab.testbed.planner.hierarchy import Chain
from lab.testbed.planner.hierarchy_site import Path, Site, path_of

HUBS = ("orin-nano-super", "apple-m4", "agx-orin", "strix-halo", "rtx-4090")
ROUND_TRIPS_MS = (5, 10, 20, 40, 60, 100, 150, 250)  # between hub and server
LOADS = (0, 8, 32)  # sessions of other users in a step of the server


@dataclass(frozen=True)
class HierarchyPoint:
    """One place of the map."""

    hub: str
    rtt_ms: float
    others: int
    path: Path  # the fastest; of equals that with the fewest models
    rate: float  # tokens/s of a user
    gain: float  # of the fastest hierarchy over the fastest path without one; 0 = the hub has no room for its model


def points(site: Site) -> list[HierarchyPoint]:
    """All HUBS, ROUND_TRIPS_MS and LOADS that the server has room for, with the devices and models of `site`."""
    return list(_points(site))


def _points(site: Site) -> Iterator[HierarchyPoint]:
    room = sessions_beside(site.server, site.context)
    for others in LOADS:
        if others + 1 > room:
            return
        for hub in HUBS:
            cost = TargetCost(catalog.accelerator(hub), site.hub.target)
            for rtt_ms in ROUND_TRIPS_MS:
                yield _point(replace(site, hub=cost, hub_rtt_s=rtt_ms / 1000, others=others), rtt_ms)


def _point(site: Site, rtt_ms: float) -> HierarchyPoint:
    chains = sorted(site.hierarchy.chains(), key=lambda chain: len(chain.edges))
    best, simple = max(chains, key=site.rate), max(map(site.rate, chains[: _simple(chains)]))
    deep = map(site.rate, chains[_simple(chains) :])
    return HierarchyPoint(
        site.hub.accelerator.id,
        rtt_ms,
        round(site.others),
        path_of(best),
        site.rate(best),
        max(deep, default=0.0) / simple,
    )


def _simple(chains: list[Chain]) -> int:
    """How many have one model that drafts at most; they come first."""
    return sum(len(chain.edges) < 2 for chain in chains)
