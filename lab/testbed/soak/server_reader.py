"""A reader of a server's own API: nothing is resumed over HTTP, so it asks again; what came is checked."""

import asyncio

from lab.testbed.soak.edge_reader import EdgeLost, EdgeReader
from lab.testbed.soak.readers import PAUSE_S
from opensled.core.errors import Overloaded, Unreachable


class ServerReader(EdgeReader):
    """Its answers end with the server that gives them, whatever ends that: no fault of the software."""

    async def _ask(self, number: int) -> None:
        try:
            await super()._ask(number)
        except (EdgeLost, Unreachable, Overloaded):
            await asyncio.sleep(PAUSE_S)
