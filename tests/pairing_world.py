"""Both ends of a pairing over real sockets in one process, and who stands between them."""

import asyncio
from contextlib import asynccontextmanager, suppress

from home.desk.desk import PairingDesk
from home.desk.devices import paired_devices
from home.desk.home import Home
from home.pairing.channel import DeviceEnd
from home.pairing.frames import PairFrame, encode_frame, read_frame
from home.pairing.handover import read_code
from home.pairing.pair_device import pair
from opensled.net.address import host_port
from tests.loops import cancelled

CODE, WRONG = "4821-0937", "1111-1111"
HERE = "127.0.0.1"


@asynccontextmanager
async def desk(folder, code=CODE):
    """A pairing port; yields (desk, port)."""
    found = PairingDesk(Home(folder), code, 7411)
    server = await asyncio.start_server(found.serve, HERE, 0)
    try:
        yield found, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        serving = [task for task in asyncio.all_tasks() if "PairingDesk.serve" in repr(task.get_coro())]
        await cancelled(*serving)
        if found.outcome.done() and not found.outcome.cancelled():
            found.outcome.exception()


async def device(port, code=CODE, name="kitchen", host=HERE):
    return await pair(host, port, read_code(code), name)


def names(folder):
    return [each.name for each in paired_devices(Home(folder))]


class Line:
    """A connection on which a test says what it wants."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def say(self, data):
        self.writer.write(data)

    async def hear(self, kind):
        return await read_frame(self.reader, kind, 5.0)

    async def ends(self, seconds=5.0):
        """What still comes until the other end closes."""
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), seconds)
        return b""


@asynccontextmanager
async def line(port):
    reader, writer = await asyncio.open_connection(HERE, port)
    try:
        yield Line(reader, writer)
    finally:
        writer.close()


async def guess(port, code=WRONG):
    """One whole run with a code; the proof is right where the code is."""
    async with line(port) as found:
        end = DeviceEnd(read_code(code))
        found.say(encode_frame(PairFrame.HELLO, end.hello))
        channel, _ = end.channel(await found.hear(PairFrame.ANSWER))
        found.say(encode_frame(PairFrame.REQUEST, channel.proof + channel.seal(b"{}")))
        await found.hear(PairFrame.GRANT)


class Middle:
    """Someone on the link: passes frames on, notes them, and may change them."""

    def __init__(self, change=lambda kind, body: body):
        self._change, self.seen = change, []

    @asynccontextmanager
    async def before(self, port):
        """A port before that one."""
        tasks = set()

        async def take(reader, writer):
            there, back = await asyncio.open_connection(HERE, port)
            for way in (self._pass(reader, back), self._pass(there, writer)):
                tasks.add(asyncio.ensure_future(way))

        server = await asyncio.start_server(take, HERE, 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            await cancelled(*tasks)

    async def _pass(self, reader, writer):
        try:
            while True:
                head = await reader.readexactly(3)
                body = await reader.readexactly(int.from_bytes(head[1:], "big"))
                self.seen.append((PairFrame(head[0]), body))
                body = self._change(PairFrame(head[0]), body)
                writer.write(head[:1] + len(body).to_bytes(2, "big") + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def port_of(address):
    return host_port(address)[1]
