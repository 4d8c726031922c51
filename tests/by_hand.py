"""A server and its streams moved by hand: no clock, no threads, nothing happens unless the caller says so."""

import asyncio
from dataclasses import dataclass, field

from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import InvalidRequest, ProtocolError, Unreachable
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from tests.fakes import FakeEngine
from tests.rounds import one_step
from verify_server.admission.session_manager import SessionManager


class HandLoop(asyncio.SelectorEventLoop):
    """Time passes only by `advance`."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def settle(self) -> None:
        """Run until everybody waits."""
        while True:
            self.call_soon(self.stop)
            self.run_forever()
            due = self._scheduled and self._scheduled[0]._when <= self.now
            if not self._ready and not due:
                return

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.settle()


@dataclass
class Server:
    """A session manager whose loop runs only when told to."""

    manager: SessionManager
    engine: FakeEngine

    def step(self, profile: HardwareProfile) -> bool:
        self.manager.loop.machine.profile = profile
        return bool(one_step(self.manager.loop))


@dataclass
class Wire:
    """One stream: what was sent and has not arrived, each way, and what has."""

    up: list[bytes] = field(default_factory=list)
    down: list[bytes] = field(default_factory=list)
    at_server: asyncio.Queue = field(default_factory=asyncio.Queue)
    at_device: asyncio.Queue = field(default_factory=asyncio.Queue)
    broken: bool = False

    async def send(self, message) -> None:
        self._require()
        self.up.append(codec.encode_client(message).SerializeToString())

    async def receive(self):
        self._require()
        payload = await self.at_device.get()
        if payload is None:
            raise Unreachable("broken")
        try:
            return codec.decode_server(pb.ServerMessage.FromString(payload))
        except codec.Malformed as error:  # as edge_client/link/link.py has it
            raise ProtocolError("no message") from error

    async def close(self, linger: float = 0.0) -> None:
        self.tear()

    def _require(self) -> None:
        if self.broken:
            raise Unreachable("broken")

    def tear(self) -> None:
        if not self.broken:
            self.broken = True
            self.up.clear(), self.down.clear()
            self.at_server.put_nowait(None)
            self.at_device.put_nowait(None)

    async def server_receive(self):
        payload = await self.at_server.get()
        try:
            return None if payload is None else codec.decode_client(pb.ClientMessage.FromString(payload))
        except codec.Malformed as error:  # as verify_server/front/service.py has it
            raise InvalidRequest("no message", "kind") from error

    async def server_send(self, message) -> None:
        if not self.broken:
            self.down.append(codec.encode_server(message).SerializeToString())

    def deliver(self, upwards: bool, index: int) -> None:
        waiting, queue = (self.up, self.at_server) if upwards else (self.down, self.at_device)
        if waiting:
            queue.put_nowait(waiting.pop(index % len(waiting)))
