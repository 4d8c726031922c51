"""Round trips to a server: small calls over the link that drafts use."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edge_client.link.link import Link


async def round_trips(link: Link, count: int, seconds: float) -> list[float]:
    """Seconds of up to `count` Describe calls, one after another, for at most `seconds`; at least one.

    The connection is open already. Raises the errors of `Link.describe`.
    """
    trips: list[float] = []
    deadline = time.monotonic() + seconds
    while not trips or (len(trips) < count and time.monotonic() < deadline):
        started = time.monotonic()
        await link.describe()
        trips.append(time.monotonic() - started)
        await asyncio.sleep(0)
    return trips


def jitter(trips: Sequence[float]) -> float:
    """Mean difference between one round trip and the next (as in RFC 3550); 0 for a single one."""
    return statistics.fmean(abs(after - before) for before, after in pairwise(trips)) if trips[1:] else 0.0
