"""Ways to serve the same users with the same models: a fleet, and what each baseline makes of it.

A fleet says what pace its users want; only `opensled` and its parts have a server that can be told.
"""

from collections.abc import Callable
from dataclasses import replace

from lab.testbed.emulation.draft_head import KINDS
from lab.testbed.fleet import Fleet, Server

LONGEST = 8  # draft tokens that a device drafts where the server asks for as many; more were not recorded
C_TH = 0.5  # confidence threshold of SLED as published (arXiv 2506.09397), as a re-implementation sets it


def past_hubs(fleet: Fleet) -> Fleet:
    """The same users and server without hubs: devices go the whole way themselves, as all baselines do."""
    if fleet.hub is None:
        return fleet
    way = fleet.hub.link
    groups = tuple(
        group if group.direct else replace(group, link="+".join(filter(None, (group.link, way))))
        for group in fleet.groups
    )
    return replace(fleet, groups=groups, hub=None)


def centralized(fleet: Fleet) -> Fleet:
    """The server decodes, in continuous batches; devices only read."""
    groups = tuple(replace(group, drafter="none", pace=0.0, live=False) for group in fleet.groups)
    return replace(fleet, groups=groups)


def server_sd(fleet: Fleet) -> Fleet:
    """The same draft beside the target, with one fixed length: no link and no slow device between them, but the
    accelerator pays for it. Devices only read."""
    length = max(1, fleet.groups[0].draft_length)
    server = replace(_with_draft(fleet), policy="fcfs", draft_length=length)
    return replace(centralized(fleet), server=server)


def _with_draft(fleet: Fleet) -> Server:
    """The server with the devices' draft model beside its target."""
    return replace(fleet.server, draft=fleet.groups[0].draft)


def sled_static(fleet: Fleet) -> Fleet:
    """SLED as published: confidence drafting, and a server that waits for a fixed batch and pads it."""
    groups = tuple(replace(group, confidence=C_TH, pace=0.0) for group in fleet.groups)
    return replace(fleet, groups=groups, server=replace(fleet.server, policy="static"))


def sled_continuous(fleet: Fleet) -> Fleet:
    """The same devices at a server that batches continuously and waits for no device."""
    groups = tuple(replace(group, pace=0.0) for group in fleet.groups)
    return replace(fleet, groups=groups, server=replace(fleet.server, policy="fcfs"))


def opensled(fleet: Fleet) -> Fleet:
    """The default policy, with a draft on the devices and the same beside the target: it knows what users were
    promised, and says for each who drafts, and how much."""
    return replace(opensled_device(fleet), server=replace(_with_draft(fleet), policy="goodput"))


def opensled_server(fleet: Fleet) -> Fleet:
    """`opensled` whose devices only read."""
    groups = tuple(replace(group, drafter="none", live=False) for group in fleet.groups)
    return replace(fleet, groups=groups, server=opensled(fleet).server)


def opensled_device(fleet: Fleet) -> Fleet:
    """`opensled` whose server has no draft of its own."""
    groups = tuple(
        replace(group, stop="hint", draft_length=LONGEST, confidence=0.0) for group in fleet.groups
    )
    return replace(fleet, groups=groups, server=replace(fleet.server, policy="goodput"))


def with_head(baseline: Callable[[Fleet], Fleet], kind: str) -> Callable[[Fleet], Fleet]:
    """A baseline with a draft beside the target, where that is a head of this kind instead of a model."""

    def fleet_of(fleet: Fleet) -> Fleet:
        found = baseline(fleet)
        return replace(found, server=replace(found.server, draft=kind))

    return fleet_of


def device_only(fleet: Fleet) -> Fleet:
    """The draft model alone: no server, and only the draft's own quality."""
    groups = tuple(replace(group, drafter="alone", live=False) for group in fleet.groups)
    return replace(fleet, groups=groups)


OPENSLED_DEVICES = "opensled-device"

BASELINES: dict[str, Callable[[Fleet], Fleet]] = {
    "centralized": centralized,
    "server-sd": server_sd,
    "sled-static": sled_static,
    "sled-continuous": sled_continuous,
    "opensled": opensled,
    OPENSLED_DEVICES: opensled_device,
    "opensled-server": opensled_server,
    "device-only": device_only,
}
OPENSLED, CENTRALIZED, SERVER_SD = "opensled", "centralized", "server-sd"
# server-sd-specformer and so on: with a draft head beside the target
OF_HEADS = {
    f"{name}-{kind}": with_head(BASELINES[name], kind) for name in (SERVER_SD, OPENSLED) for kind in KINDS
}
BASELINES |= OF_HEADS
DRAFT_BESIDE = (SERVER_SD, OPENSLED, "opensled-server", *OF_HEADS)  # with a draft beside the target
PARTS = (OPENSLED_DEVICES, "opensled-server")  # of OPENSLED: one drafter each
# Where nothing else is asked for
USUAL = tuple(name for name in BASELINES if name not in (*PARTS, *OF_HEADS))
RIVALS = (
    CENTRALIZED,
    SERVER_SD,
    "sled-static",
    "sled-continuous",
)  # that write the same text on the same machines
