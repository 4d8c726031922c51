"""Whether a server can be reached, as its connection tells."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

_PRESENT = {grpc.ChannelConnectivity.READY: True, grpc.ChannelConnectivity.TRANSIENT_FAILURE: False}


async def presence(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    """Whether the server answers, as soon as that is known and then at each change; the channel keeps trying.

    Pings of the channel find a server that is gone without a word. Ends when the channel is closed.
    """
    told: bool | None = None
    while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.SHUTDOWN:
        present = _PRESENT.get(state)
        if present is not None and present != told:
            told = present
            yield present
        await channel.wait_for_state_change(state)
