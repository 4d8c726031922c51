"""A fleet in one TOML file: so many of this device, on that link, with that drafter, and the server they share, perhaps
with hubs between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from hw_profiles import catalog
from hw_profiles.step_cost import TargetCost
from lab.testbed.emulation.draft_head import KINDS, DraftCost, HeadCost, HeadProfile, sessions_beside
from opensled.cli.config_file import read_file
from opensled.core.errors import UsageError

STOPS = ("fixed", "hint")
Part = TypeVar("Part", "Group", "Server", "Hub", "Fleet")
NESTED = ("server", "hub", "groups")  # keys of a fleet that are tables


class Wish(NamedTuple):
    """What a device says of itself when it opens a sequence."""

    device: str = ""  # the name by which the server knows it again
    pace: float = 0.0  # tokens/s; 0 = none
    background: bool = False


@dataclass(frozen=True)
class Group:
    """Devices of one kind."""

    count: int = 1
    device: str = ""  # profile it is paced to; "" = this machine, as fast as it is
    link: str = ""  # profile of its link; "" = loopback; wifi-good+wan-80 is two one after another
    drafter: str = "llamacpp"  # none, lookup, llamacpp, onnx
    draft_model: str = "tiny-draft"  # what really drafts
    draft: str = "0.5b"  # size of the draft whose speed the device's profile gives
    draft_length: int = 4
    confidence: float = 0.0  # c_th of SLED, 0 = fixed length
    stop: str = "fixed"  # or "hint": the server says how long blocks are, draft_length is the most
    look_ahead: bool = False  # draft on while a verdict travels
    live: bool = False  # run the real drafter, paced; else replay what it drafted when it was recorded
    pace: float = 0.0  # tokens/s that its users ask the server for; 0 = none
    background: bool = False  # they give way to others
    user_link: str = ""  # link between the user and the drafter, where that sits beside the server
    direct: bool = False  # they ask the server, past all hubs; `link` is then the whole way

    def wish(self, user: int) -> Wish:
        """What the device of user number `user` says."""
        return Wish(f"device-{user}", self.pace, self.background)


@dataclass(frozen=True)
class Server:
    """The target, where it runs, and who plans its steps."""

    model: str = "tiny"  # what really verifies
    engine: str = "torch"
    accelerator: str = ""  # profile its steps are stretched to; "" = this machine
    target: str = "dense-8b"  # shape it stands for on that accelerator
    weight_bits: float = 16.0  # of that shape, as served
    context: int = 1024  # KV positions that each session holds already when its request arrives
    policy: str = "fcfs"
    batch: int = 0  # drafts that policy `static` waits for; 0 = all sessions there are
    draft_wait: float = 0.25  # seconds, emulated where time is
    # Size of a draft model on the same accelerator, or kind of a draft head (specformer, ctc); "" = none
    draft: str = ""
    draft_length: int = 4  # tokens of its drafts under policy `fcfs`
    # In simulations only: how many other users there are. Each of them gets one token in every step
    others: int = 0

    @property
    def cost(self) -> TargetCost:
        """The law of the emulated target."""
        shape = catalog.target(self.target).at(self.weight_bits)
        return TargetCost(catalog.accelerator(self.accelerator), shape)

    @property
    def has_head(self) -> bool:
        """Whether a draft head drafts beside the target."""
        return self.draft in KINDS

    @property
    def draft_cost(self) -> DraftCost | None:
        """The law of the draft on the same accelerator."""
        if not self.draft:
            return None
        if self.has_head:
            return HeadCost(self.cost.accelerator, HeadProfile.usual(self.draft, self.cost.target))
        shape = catalog.target(f"draft-{self.draft}").at(self.weight_bits)
        return TargetCost(catalog.accelerator(self.accelerator), shape)

    @property
    def sessions_that_fit(self) -> int:
        """Sessions of the fleet whose KV is on the accelerator at the same time, beside a draft's weights."""
        return max(0, sessions_beside(self.cost, self.context, self.draft_cost) - self.others)


@dataclass(frozen=True)
class Hub(Server):
    """A relay between devices and server, and where its own model runs. Users take turns: user n asks hub n modulo
    `count`."""

    model: str = "tiny-hub"  # what really vets
    target: str = "draft-3b"  # shape it stands for
    weight_bits: float = 4.0
    policy: str = "goodput"
    count: int = 1
    name: str = "hub"  # under which the server knows it again
    link: str = ""  # profile of its link to the server; "" = loopback
    block: int = 8  # vetted tokens of a block
    bound: float = 0.4  # chance that all of a block stands, below which it leaves before it is full


@dataclass(frozen=True)
class Fleet:
    """Server and devices."""

    server: Server = Server()
    groups: tuple[Group, ...] = (Group(),)
    dilation: float = 1.0  # real seconds for each emulated one
    hub: Hub | None = None  # None = devices ask the server

    @property
    def users(self) -> int:
        return sum(group.count for group in self.groups)

    def of_users(self, count: int) -> Fleet:
        """The same mixture with `count` users in all; every group keeps its share, the first ones get the rest."""
        total, groups, left = self.users, [], count
        for number, group in enumerate(self.groups):
            others = sum(each.count for each in self.groups[number:])
            share = round(left * group.count / others) if others else 0
            groups.append(replace(group, count=share))
            left -= share
        assert total and left == 0
        return replace(self, groups=tuple(groups))

    def wanting(self, pace: float) -> Fleet:
        """The same with users who want `pace` tokens/s, where they want nothing yet."""
        groups = tuple(replace(group, pace=group.pace or pace) for group in self.groups)
        return replace(self, groups=groups)


def read_fleet(path: Path) -> Fleet:
    """A fleet from TOML tables [server], [hub], [[device]] and `dilation`; raises UsageError or NotFound by name."""
    document = dict(read_file(path))
    hub = part(Hub, document.pop("hub"), f"{path}: [hub]") if "hub" in document else None
    server = part(Server, document.pop("server", {}), f"{path}: [server]")
    tables = document.pop("device", [{}])
    if not isinstance(tables, list) or not tables:
        raise UsageError(f"{path}: write each kind of device as [[device]]")
    groups = tuple(part(Group, table, f"{path}: [[device]] {n}") for n, table in enumerate(tables, 1))
    fleet = part(Fleet, document, str(path))
    fleet = replace(fleet, server=server, hub=hub, groups=groups)
    _check(fleet, path)
    return fleet


def part(kind: type[Part], table: Any, where: str) -> Part:
    """A table with keys of `kind`; raises UsageError, which says where, for a key or a type that is none of its."""
    known = {item.name: item for item in fields(kind) if item.name not in NESTED}
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: a table is needed")
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}; keys are {', '.join(known)}")
        default = known[key].default
        right = (int, float) if isinstance(default, float) else type(default)
        if not isinstance(value, right) or isinstance(value, bool) != isinstance(default, bool):
            raise UsageError(f"{where}: {key} = {value!r} is not {type(default).__name__}")
    return kind(**table)


def _check(fleet: Fleet, path: Path) -> None:
    """Every profile exists, and every number can be worked with."""
    if fleet.dilation <= 0:
        raise UsageError(f"{path}: dilation must be above 0")
    if fleet.server.accelerator:
        assert fleet.server.cost
        assert fleet.server.draft_cost or not fleet.server.draft
    if fleet.hub:
        _check_hub(fleet.hub, f"{path}: [hub]")
    if fleet.server.others < 0:
        raise UsageError(f"{path}: [server] others must not be negative")
    if fleet.server.draft_length < 1:
        raise UsageError(
            f'{path}: [server] draft_length must be 1 or more; draft = "" is a server that drafts nothing'
        )
    for number, group in enumerate(fleet.groups, 1):
        where = f"{path}: [[device]] {number}"
        if group.count < 0 or group.draft_length < 0:
            raise UsageError(f"{where}: count and draft_length must not be negative")
        if not 0 <= group.confidence <= 1:
            raise UsageError(f"{where}: confidence must lie within 0 and 1")
        if group.stop not in STOPS:
            raise UsageError(f"{where}: stop = {group.stop!r} is not known; choose from {', '.join(STOPS)}")
        if not 0 <= group.pace < inf:
            raise UsageError(f"{where}: pace = {group.pace:g} is no number of tokens/s")
        if group.device:
            catalog.device(group.device).draft(group.draft)
        for link in filter(None, (group.link, group.user_link)):
            check_link(link)
    if not fleet.users:
        raise UsageError(f"{path}: the fleet has no devices")


def _check_hub(hub: Hub, where: str) -> None:
    if hub.accelerator:
        assert hub.cost
    if hub.link:
        check_link(hub.link)
    if hub.draft:
        raise UsageError(f"{where}: no drafter runs beside a relay's model; leave draft out")
    if hub.count < 1 or hub.block < 1:
        raise UsageError(f"{where}: count and block must be 1 or more")
    if not 0 <= hub.bound <= 1:
        raise UsageError(f"{where}: bound must lie within 0 and 1")


def check_link(link: str) -> None:
    """Raises NotFound for a profile that does not exist, of several with + between."""
    for name in link.split("+"):
        catalog.link(name)
