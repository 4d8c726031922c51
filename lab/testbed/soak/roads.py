"""The ways of one device: a lossy link in front of every address it is sent to, which weather and cuts can befall."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from edge_client.link.link import Endpoint, GrpcStream, Link
from hw_profiles.profiles import LinkProfile
from lab.testbed.link_relay import Relay
from opensled.core.errors import Unreachable
from opensled.core.messages import ClientMessage, ServerMessage

MOST = 6  # of one device; replicas come back at other addresses, and those they had are forgotten


class Road:
    """A relay to one address, and the device's channel through it."""

    def __init__(self, relay: Relay, token: str) -> None:
        """`relay` runs already."""
        self.relay, self.link = relay, Link(Endpoint(relay.address, token))

    async def close(self) -> None:
        await self.link.close()
        await self.relay.__aexit__()


class Roads:
    """All links of one device; each address gets one when it is first needed."""

    def __init__(self, home: str, profile: LinkProfile, token: str, source: str, seed: int) -> None:
        """`home`: HOST:PORT that the device asks first; `source`: address that servers see as the device's."""
        self._home, self._token, self._source, self._seed = home, token, source, seed
        self._profile = self._usual = profile
        self._roads: OrderedDict[str, Road] = OrderedDict()  # by address, the one used last at the end
        self._making = asyncio.Lock()

    def connect(self, address: str = "") -> RoadStream:
        """See `edge_client.link.remote.Connect`."""
        return RoadStream(self, address or self._home)

    async def to(self, address: str) -> Road:
        """The road to an address."""
        async with self._making:
            if address not in self._roads:
                self._roads[address] = Road(await self._relay(address), self._token)
            self._roads.move_to_end(address)
            while len(self._roads) > MOST:
                await self._roads.popitem(last=False)[1].close()
            return self._roads[address]

    async def _relay(self, address: str) -> Relay:
        self._seed += 1
        return await Relay(self._profile, address, seed=self._seed, source=self._source).__aenter__()

    def reset(self) -> None:
        """RST to both ends of every connection."""
        for road in self._roads.values():
            road.relay.reset()

    def black_out(self, seconds: float) -> None:
        """Nothing arrives for so long, on any road."""
        for road in self._roads.values():
            road.relay.black_out(seconds)

    def become(self, profile: LinkProfile | None) -> None:
        """Links of another profile from now on; None = of the usual one."""
        self._profile = profile or self._usual
        for road in self._roads.values():
            road.relay.become(self._profile)

    async def close(self) -> None:
        while self._roads:
            await self._roads.popitem()[1].close()


class RoadStream:
    """A stream whose road is made with its first message, which names the sequence."""

    def __init__(self, roads: Roads, address: str) -> None:
        self._roads, self._address = roads, address
        self._stream: GrpcStream | None = None

    async def send(self, message: ClientMessage) -> None:
        if self._stream is None:
            self._stream = (await self._roads.to(self._address)).link.connect()
        await self._stream.send(message)

    async def receive(self) -> ServerMessage:
        if self._stream is None:
            raise Unreachable(f"nothing was sent to {self._address} yet")
        return await self._stream.receive()

    async def close(self, linger: float = 0.0) -> None:
        if self._stream is not None:
            await self._stream.close(linger)
