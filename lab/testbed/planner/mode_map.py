"""The map: which mode holds the most users, and by how much, over targets, contexts, paces, devices and links."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.testbed.baselines import SERVER_SD
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.planner.capacity_law import MODES, best
from lab.testbed.planner.setting import Work, of_fleet

DEVICES = ("pi-5", "orin-nano-super", "agx-orin", "laptop-cpu")
LINKS = ("ethernet", "wifi-good", "wifi-busy", "5g", "lte", "wan-80", "wan-110")
PACES = (5, 10, 20, 40)  # tokens/s
CONTEXTS = (1024, 8192)
TARGETS = (
    Server(accelerator="a100-80", target="dense-8b"),
    Server(accelerator="h200", target="dense-32b"),
    Server(accelerator="a100-80", target="moe-30b-a3b"),
    Server(accelerator="agx-orin", target="dense-8b", weight_bits=8),
)


@dataclass(frozen=True)
class Point:
    """The best mode of one place of the map. Of modes that hold as many the simplest is best, in the order of MODES."""

    server: Server
    device: str
    link: str
    pace: float
    mode: str  # "" where no user is served
    draft_length: int
    users: int
    gain: float  # over the server's own decoding; infinite where that serves no user


def panels(contexts: Sequence[int] = CONTEXTS, targets: Sequence[Server] = TARGETS) -> list[Server]:
    """Each target with each context."""
    return [replace(server, context=context) for server in targets for context in contexts]


def points(
    servers: Sequence[Server], work: Work, draft: str = "0.5b", beside: str = SERVER_SD
) -> list[Point]:
    """Every server with all DEVICES, LINKS and PACES; `beside`: see `of_fleet`."""
    return [
        _point(Fleet(server, (Group(1, device, link, draft=draft),)), pace, work, beside)
        for server in servers
        for link in LINKS
        for device in DEVICES
        for pace in PACES
    ]


def _point(fleet: Fleet, pace: float, work: Work, beside: str) -> Point:
    setting, (group,) = of_fleet(fleet, work, beside), fleet.groups
    place = fleet.server, group.device, group.link, pace
    found = [best(setting, mode, pace) for mode in MODES]
    top = max(found, key=lambda each: each.users)  # the first of equals
    if not top.users:
        return Point(*place, "", 0, 0, 1.0)
    plain = found[0].users
    gain = top.users / plain if plain else float("inf")
    return Point(*place, top.mode, top.draft_length, top.users, gain)
