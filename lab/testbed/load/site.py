"""A fleet set up: its devices with their links and drafters, before the server it asks."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from edge_client.link.link import Endpoint, Link
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.fleet import Fleet, Group
from lab.testbed.load.device_drafts import CountedDrafting, Factories, recorded, replaying, replays, speed_of
from lab.testbed.load.hub_process import linked
from lab.testbed.load.load import Item
from lab.testbed.load.load_device import Asks, LoadDevice, LoneDevice
from lab.testbed.load.records import Clock
from lab.testbed.load.server_process import Running
from lab.testbed.load.wire import Shares
from lab.testbed.simulated.links import ways
from lab.testbed.target_text import tokenizer_of
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.errors import UsageError
from opensled.core.messages import ModelInfo
from opensled.text.tokenizer import TargetTokenizer

ALONE = "alone"  # as a group's drafter: no server takes part


class Seat(NamedTuple):
    """One user and the device that answers."""

    user: int
    group: int
    device: Asks


def is_alone(fleet: Fleet) -> bool:
    """Whether no device of the fleet asks a server."""
    return all(group.drafter == ALONE for group in fleet.groups)


@dataclass
class Site:
    """What the devices of one run share."""

    fleet: Fleet
    clock: Clock
    server: Running | None
    hubs: Sequence[Running]
    found: dict[str, ItemTrace]
    traces: TraceSet | None
    info: ModelInfo | None
    tokenizer: TargetTokenizer
    factories: Factories | None
    stack: AsyncExitStack

    async def seat(self, user: int, number: int, group: Group) -> Seat:
        """Make one device; what it holds is freed with the stack."""
        device = self._lone(group) if group.drafter == ALONE else await self._linked(user, group)
        return Seat(user, number, device)

    def _lone(self, group: Group) -> LoneDevice:
        speed = speed_of(group)
        if speed is None or not self.found:
            raise UsageError("a device alone needs a profile (device = ...) and recorded drafts")
        return LoneDevice(speed, self.tokenizer, self.clock, self.found)

    async def _linked(self, user: int, group: Group) -> LoadDevice:
        assert self.server is not None
        direct = group.direct or not self.hubs
        asked = self.server if direct else self.hubs[user % len(self.hubs)]
        relay = await linked(group.link, asked.address, self.clock.dilation, user, self.stack)
        seconds = self.clock.dilation
        endpoint = Endpoint(
            relay.address if relay else asked.address, timeout=10 * seconds, connect=2.5 * seconds
        )
        link = Link(endpoint)
        self.stack.push_async_callback(link.close)
        device = LoadDevice(
            link.connect,
            await self._drafts(group),
            self.tokenizer,
            self.clock,
            traces=self.found,
            wish=group.wish(user),
            shares=Shares(lambda: (relay.bytes_up, relay.bytes_down)) if relay else None,
            user_link=ways(group.user_link, user) if group.user_link else None,
        )
        self.stack.push_async_callback(device.close)
        return device

    async def _drafts(self, group: Group) -> CountedDrafting:
        if group.drafter == "none":
            return NoDrafts()
        if replays(group, self.traces):
            return replaying(group, self.found, self.clock.dilation)
        assert self.factories is not None
        drafts = await asyncio.to_thread(self.factories.live, group)
        self.stack.callback(drafts.close)
        return drafts


@asynccontextmanager
async def site(
    fleet: Fleet,
    server: Running | None,
    hubs: Sequence[Running],
    items: Sequence[Item],
    traces: TraceSet | None,
    clock: Clock,
) -> AsyncIterator[list[Seat]]:
    """A seat for each user of `fleet`, in the order of its groups; raises UsageError for items not recorded."""
    needed = any(group.drafter == ALONE or replays(group, traces) for group in fleet.groups)
    async with AsyncExitStack() as stack:
        info, tokenizer = await _meet(fleet, server)
        factories = Factories(info, clock.dilation) if info else None
        found = recorded(items, traces if needed else None)
        shared = Site(fleet, clock, server, hubs, found, traces, info, tokenizer, factories, stack)
        kinds = [(number, group) for number, group in enumerate(fleet.groups) for _ in range(group.count)]
        yield [await shared.seat(user, number, group) for user, (number, group) in enumerate(kinds)]


async def _meet(fleet: Fleet, server: Running | None) -> tuple[ModelInfo | None, TargetTokenizer]:
    """The target and its tokenizer, past the emulated links: they are no part of the load."""
    if server is None:
        return None, tokenizer_of(fleet.server.model)
    link = Link(Endpoint(server.address))
    try:
        return await link.describe(), TargetTokenizer(await link.tokenizer_json())
    finally:
        await link.close()
