"""Waits for a server that loads its model."""

from __future__ import annotations

import asyncio

from edge_client.link.link import Link
from edge_client.link.link_errors import NOTHING_LISTENS
from opensled.core.errors import Loading, Unreachable
from opensled.core.messages import ModelInfo
from opensled.process.logs import tell

# All chosen: a model of tens of gigabytes from a slow disk, within the 900 s that a unit of ours gives a start; and
# seconds for a server to listen anew after it has loaded, in which no device takes it for gone.
LONGEST_S, LOOK_S, GONE_S = 600.0, 1.0, 5.0
START_S = 30.0  # for a server that is started together with its devices to listen; chosen


async def describe_when_loaded(link: Link, to_listen: float = 0.0) -> ModelInfo:
    """What the server says of its target; while it loads, this says so once and waits, for LONGEST_S at most. Where
    nothing listens yet, it waits for `to_listen` seconds.

    Raises Unreachable for a server that does not answer, or not any more, and Loading for one that still loads.
    """
    clock = asyncio.get_running_loop().time
    began, heard_at = clock(), float("-inf")  # when it was heard last that the server is loading
    told = False  # that nothing listens yet
    while True:
        try:
            return await link.describe()
        except Loading:
            if clock() - began >= LONGEST_S:
                raise
            if heard_at < began:
                tell("the server is loading its model; waiting")
            heard_at = clock()
        except Unreachable as error:
            awaited = NOTHING_LISTENS in str(error) and clock() - began < to_listen
            if not awaited and clock() - heard_at >= GONE_S:
                raise
            if awaited and not told and heard_at < began:
                tell(f"{error}; waiting {to_listen:g} s for one")
            told = told or awaited
        await asyncio.sleep(LOOK_S)
