"""A balancer of connections, as kube-proxy is one: each new connection goes to one of the servers that are ready then,
and stays there, whatever becomes of that server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from tests.loops import cancelled

CHUNK = 1 << 16


@asynccontextmanager
async def balancer(ready: Callable[[], Sequence[str]]) -> AsyncIterator[str]:
    """Yields HOST:PORT; `ready`: HOST:PORT of each server that takes connections now, taken in turns."""
    turn, open_ones = 0, set[asyncio.Task[None]]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        task = asyncio.current_task()
        assert task is not None
        open_ones.add(task)
        try:
            servers, turn = ready(), turn + 1
            if servers:
                # Not further: asyncio's own callback takes a task that was cancelled for one that failed.
                with contextlib.suppress(asyncio.CancelledError):
                    await _join(servers[turn % len(servers)], reader, writer)
        finally:
            open_ones.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await cancelled(*open_ones)


async def _join(address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes both ways until one side ends."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        pumps = [asyncio.ensure_future(_pump(*pair)) for pair in ((reader, far_writer), (far_reader, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancelled(*pumps)
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
