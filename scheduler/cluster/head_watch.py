"""Whether the Ray of a gateway is still there: its head, and the node of this machine.

Ray itself cuts every process of its cluster a minute after the head, in the midst of answers; without the node none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opensled.net.address import host_port

LOOK_S = 1.0  # between two looks, and for one; chosen
GONE = 5  # looks in a row that find nothing. Chosen: a busy head is no dead one, and answers have 30 s to end


async def ray_lost(ports: Sequence[str]) -> str:
    """Returns the first of these HOST:PORT at which nothing has listened for some seconds."""
    missed = dict.fromkeys(ports, 0)
    while True:
        await asyncio.sleep(LOOK_S)
        for port in ports:
            missed[port] = 0 if await _listens(port) else missed[port] + 1
            if missed[port] == GONE:
                return port


async def _listens(address: str) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(*host_port(address)), LOOK_S)
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True
