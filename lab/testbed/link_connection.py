"""One connection through a relay: its two sockets, and the bytes under way between them."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque

from lab.testbed.link_state import LinkState

# What travels as one. Longer reads are cut, so that their first part need not wait for the last.
PIECE_BYTES = 16 * 1024


class Connection:
    """A device's connection, its continuation to the server, and both directions between them."""

    def __init__(
        self, link: LinkState, to: tuple[str, int], alive: set[Connection], source: str = ""
    ) -> None:
        """`to`: host and port of the server; `alive` holds this connection while it lasts.

        `source`: address of this machine from which the server is dialled; "" = any.
        """
        self._link, self._to, self._alive = link, to, alive
        self._source = (source, 0) if source else None
        self.device, self.server = End(self), End(self)
        self.device.way = Direction(link, self.device, self.server, up=True)
        self.server.way = Direction(link, self.server, self.device, up=False)
        self._dialling: asyncio.Task[None] | None = None  # held, for the loop holds tasks weakly
        self._ended = False

    def joined(self, end: End) -> None:
        """A socket of this connection is open; a device's first thing is to shake hands over the link."""
        if self._ended:
            end.reset()
        elif end is self.device:
            self._shake_hands()

    def _shake_hands(self) -> None:
        """A round trip before the server is dialled and the first byte enters."""
        link = self._link
        self._alive.add(self)
        # In the next turn of the loop: until Python 3.11.4 (Debian 12 has 3.11.2) asyncio begins to read after
        # connection_made whatever that said.
        asyncio.get_running_loop().call_soon(self.device.pause, True)
        there = self.device.way.model.deliver_at(link.now(), 0)
        back = self.server.way.model.deliver_at(there, 0)
        link.at(link.arrival(back), self._dial_soon)

    def _dial_soon(self) -> None:
        if not self._ended:
            self._dialling = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: self.server, *self._to, local_addr=self._source
            )
        except OSError:
            self.reset()  # what a device sees of a server that refuses
        else:
            self.device.pause(False)

    def change_link(self) -> None:
        """What is sent from now on travels as the link is now."""
        for end in (self.device, self.server):
            end.way.change_link()

    def reset(self) -> None:
        """RST to both ends; what is under way is lost."""
        if self._ended:
            return
        self._end()
        for end in (self.device, self.server):
            end.reset()

    def _end(self) -> None:
        self._ended = True
        self._alive.discard(self)
        for end in (self.device, self.server):
            end.way.drop()

    def close_if_over(self) -> None:
        """Close once both sides have sent everything and all of it has arrived."""
        if self.device.way.over and self.server.way.over and not self._ended:
            self._end()
            for end in (self.device, self.server):
                end.close()


class End(asyncio.Protocol):
    """One socket of a connection. asyncio turns Nagle's algorithm off on every TCP socket."""

    way: Direction  # what this end's peer says travels here

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.connection.joined(self)

    def data_received(self, data: bytes) -> None:
        self.way.enter(data)

    def eof_received(self) -> bool:
        self.way.enter(b"")
        return True  # the other half stays open

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.reset()  # does nothing if it came to its end

    def pause_writing(self) -> None:
        self._sender().hold(True)

    def resume_writing(self) -> None:
        self._sender().hold(False)

    def _sender(self) -> Direction:
        other = self.connection.server if self is self.connection.device else self.connection.device
        return other.way

    def write(self, data: bytes) -> None:
        """Send bytes to the peer; no bytes: the end of the stream."""
        assert self._transport is not None
        if data:
            self._transport.write(data)
            return
        try:
            self._transport.write_eof()
        except OSError:  # the peer's RST has come, but asyncio has not read it yet
            self.connection.reset()

    def pause(self, on: bool) -> None:
        """Stop reading, or go on."""
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """Close so that the peer gets an RST."""
        if self._transport is not None and not self._transport.is_closing():
            # To linger for 0 s means that.
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()


class Direction:
    """One direction of a connection: pieces that are under way, first in, first out."""

    def __init__(self, link: LinkState, source: End, sink: End, up: bool) -> None:
        self._link, self.source, self.sink, self.up = link, source, sink, up
        self.model = link.model(up)
        self.over = False  # the end of the stream has arrived
        self._pieces: deque[tuple[float, bytes]] = deque()  # emulated due time; b"" = end of stream
        self._bytes = 0
        self._held = False  # the sink takes no more for now
        self._waits = False  # an alarm is set

    def enter(self, data: bytes) -> None:
        """Bytes that the source's peer sent, or b"" at their end."""
        self._count(len(data))
        now = self._link.now()
        for start in range(0, max(len(data), 1), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            due = self._link.arrival(self.model.deliver_at(now, len(piece)))
            self._pieces.append((due, piece))
        self._bytes += len(data)
        if self._bytes > self._link.window(self.up):
            self.source.pause(True)
        self._wait()

    def hold(self, on: bool) -> None:
        """The sink's peer reads too slowly, or again."""
        self._held = on
        self._wait()

    def drop(self) -> None:
        self._pieces.clear()

    def change_link(self) -> None:
        """As the link is now; nothing overtakes what is under way."""
        latest, self.model = self.model.last, self._link.model(self.up)
        self.model.last = latest

    def _count(self, size: int) -> None:
        if self.up:
            self._link.bytes_up += size
        else:
            self._link.bytes_down += size
        if self._link.observer is not None and size:
            self._link.observer(self.up, size)

    def _wait(self) -> None:
        if self._pieces and not self._held and not self._waits:
            self._waits = True
            self._link.at(self._pieces[0][0], self._deliver)

    def _deliver(self) -> None:
        self._waits = False
        now = self._link.now()
        while self._pieces and not self._held and self._pieces[0][0] <= now:
            self._hand_over(self._pieces.popleft()[1])
        self._wait()

    def _hand_over(self, piece: bytes) -> None:
        self._bytes -= len(piece)
        self.sink.write(piece)
        if not piece:
            self.over = True
            self.sink.connection.close_if_over()
        elif self._bytes <= self._link.window(self.up):
            self.source.pause(False)
