"""What a device sends and hears, timed and weighed: the edge's own session, with eyes."""

from collections.abc import Callable

from edge_client.link.remote import Connect, RemoteSession, RetryPolicy, Stream
from lab.testbed.load.records import Clock, RequestRecord
from opensled.core.messages import ClientMessage, Draft, Open, ServerMessage
from opensled.wire import codec

GRPC_PREFIX = 5  # bytes before each message: a flag and its length


class TimedSession(RemoteSession):
    """Notes when the latest draft left."""

    def __init__(self, connect: Connect, request: Open, patience: RetryPolicy, clock: Clock) -> None:
        super().__init__(connect, request, patience)
        self._clock, self._counter = clock, 0
        self.submitted = 0.0

    async def submit(self, draft: Draft) -> None:
        """See `Verifier`; a draft that is sent again on another stream left when it left first."""
        if draft.counter > self._counter:
            self._counter, self.submitted = draft.counter, self._clock.now()
        await super().submit(draft)


class WeighedStream:
    """A stream whose messages count for a request, where no relay counts what really travels."""

    def __init__(self, inner: Stream, record: RequestRecord) -> None:
        self._inner, self._record = inner, record

    async def send(self, message: ClientMessage) -> None:
        self._record.bytes_up += request_bytes(message)
        await self._inner.send(message)

    async def receive(self) -> ServerMessage:
        message = await self._inner.receive()
        self._record.bytes_down += reply_bytes(message)
        return message

    async def close(self, linger: float = 0.0) -> None:
        await self._inner.close(linger)


def weighed(connect: Connect, record: RequestRecord) -> Connect:
    return lambda *address: WeighedStream(connect(*address), record)


def request_bytes(message: ClientMessage) -> int:
    """Payload of a message to the server; HTTP/2 adds some 10 bytes of its own."""
    return GRPC_PREFIX + codec.encode_client(message).ByteSize()


def reply_bytes(message: ServerMessage) -> int:
    return GRPC_PREFIX + codec.encode_server(message).ByteSize()


class Shares:
    """Bytes of a device's link, shared among the requests that are open while they travel."""

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        """`read`: cumulative bytes up and down."""
        self._read, self._seen = read, read()
        self._open: list[RequestRecord] = []

    def enter(self, record: RequestRecord) -> None:
        self._settle()
        self._open.append(record)

    def leave(self, record: RequestRecord) -> None:
        self._settle()
        self._open.remove(record)

    def _settle(self) -> None:
        """Bytes that travel while no request is open (the connection's own) count for none."""
        before, self._seen = self._seen, self._read()
        for number, record in enumerate(self._open):
            record.bytes_up += _share(self._seen[0] - before[0], number, len(self._open))
            record.bytes_down += _share(self._seen[1] - before[1], number, len(self._open))


def _share(total: int, number: int, of: int) -> int:
    """Whole bytes that add up."""
    return total * (number + 1) // of - total * number // of
