"""Whether Ray's head is still there. Ray itself ends every process of its cluster a minute after it, without a word."""

from __future__ import annotations

import asyncio

from opensled.address import host_port

LOOK_S = 1.0  # between two looks, and for one; chosen
GONE = 5  # looks in a row that find nothing. Chosen: a busy head is no dead one, and answers have 30 s to end


async def head_lost(address: str) -> None:
    """Returns once nothing has listened at the head's HOST:PORT for some seconds."""
    missed = 0
    while missed < GONE:
        await asyncio.sleep(LOOK_S)
        missed = 0 if await _listens(address) else missed + 1


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*host_port(address)), LOOK_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
