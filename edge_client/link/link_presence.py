"""Whether a server can be reached, as its connection tells."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from opensled.core.errors import Loading, OpenSledError

_PRESENT = {grpc.ChannelConnectivity.READY: True, grpc.ChannelConnectivity.TRANSIENT_FAILURE: False}


async def presence(
    channel: grpc.aio.Channel, describe: Callable[[], Awaitable[object]]
) -> AsyncIterator[bool]:
    """Whether the server answers, as soon as that is known and then at each change; the channel keeps trying.

    `describe` asks it: one that loads its model has a connection, which it ends when it has loaded.
    Pings of the channel find a server that is gone without a word. Ends when the channel is closed.
    """
    told: bool | None = None
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.SHUTDOWN:
        present = _PRESENT.get(state)
        if present:
            present = not await _loads(describe)
        if present is not None and present != told:
            told = present
            yield present
        await channel.wait_for_state_change(state)


async def _loads(describe: Callable[[], Awaitable[object]]) -> bool:
    try:
        await describe()
    except Loading:
        return True
    except OpenSledError:  # the connection or a call will tell
        return False
    return False
