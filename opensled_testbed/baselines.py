"""Ways to serve the same users with the same models: a fleet, and what each baseline makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from opensled_testbed.fleet import Fleet

COLOCATED = "opensled_testbed.emulation.colocated:Colocated"  # scheduling policy of a draft beside the target
C_TH = 0.5  # confidence threshold of SLED as published (arXiv 2506.09397), as a re-implementation sets it


def centralized(fleet: Fleet) -> Fleet:
    """The server decodes, in continuous batches; devices only read."""
    groups = tuple(replace(group, drafter="none", live=False) for group in fleet.groups)
    return replace(fleet, groups=groups)


def server_sd(fleet: Fleet) -> Fleet:
    """The same draft beside the target: no link and no slow device between them, but the accelerator pays for it."""
    groups = tuple(
        replace(group, device="", link="", user_link=group.link, live=False) for group in fleet.groups
    )
    sizes = [group.draft for group in fleet.groups]
    server = replace(fleet.server, draft=sizes[0], policy=COLOCATED)
    return replace(fleet, groups=groups, server=server)


def sled_static(fleet: Fleet) -> Fleet:
    """SLED as published: confidence drafting, and a server that waits for a fixed batch and pads it."""
    groups = tuple(replace(group, confidence=C_TH) for group in fleet.groups)
    return replace(fleet, groups=groups, server=replace(fleet.server, policy="static"))


def sled_continuous(fleet: Fleet) -> Fleet:
    """The same devices at a server that batches continuously and waits for nobody."""
    return replace(fleet, server=replace(fleet.server, policy="fcfs"))


def device_only(fleet: Fleet) -> Fleet:
    """The draft model alone: no server, and only the draft's own quality."""
    groups = tuple(replace(group, drafter="alone", live=False) for group in fleet.groups)
    return replace(fleet, groups=groups)


BASELINES: dict[str, Callable[[Fleet], Fleet]] = {
    "centralized": centralized,
    "server-sd": server_sd,
    "sled-static": sled_static,
    "sled-continuous": sled_continuous,
    "device-only": device_only,
}
