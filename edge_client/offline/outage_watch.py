"""Reads the commits of one answer and reports while the server is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from edge_client.generate import Commit
from edge_client.offline.modes import Offline
from edge_client.offline.provisional import ProvisionalDrafting
from edge_client.remote import RemoteSession


class OutageWatch:
    """Reads commits; between two of them it checks whether the server is away."""

    def __init__(
        self,
        commits: AsyncGenerator[Commit, None],
        session: RemoteSession,
        offline: Offline,
        provisional: ProvisionalDrafting | None = None,
    ) -> None:
        """`provisional`: drafts while the server is away; None = nothing is drafted then."""
        self._commits, self._session, self._offline, self._provisional = (
            commits,
            session,
            offline,
            provisional,
        )
        self._reading: asyncio.Future[Commit] | None = None
        self._since = 0.0  # when the present reading began
        self._drafting: asyncio.Future[bool] | None = None

    async def next(self) -> Commit | float:
        """The next commit, or the seconds for which the server has been silent if it is away.

        Raises what the commits raise, StopAsyncIteration included.
        """
        if self._reading is None:
            self._reading, self._since = asyncio.ensure_future(_next(self._commits)), time.monotonic()
        while not await self._arrived(self._reading):
            seconds = time.monotonic() - self._since
            if self._session.away or seconds >= self._offline.quiet:
                self._draft_on()
                return seconds
        reading, self._reading = self._reading, None
        return reading.result()

    async def aclose(self) -> None:
        """Stop reading, and close the commits."""
        under_way = [task for task in (self._reading, self._drafting) if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._commits.aclose()

    async def _arrived(self, reading: asyncio.Future[Commit]) -> bool:
        """Wait for it, at most until the next check or until more is drafted."""
        waited_for: set[asyncio.Future[Any]] = {reading}
        if self._drafting and not self._drafting.done():
            waited_for.add(self._drafting)
        await asyncio.wait(waited_for, timeout=self._offline.look, return_when=asyncio.FIRST_COMPLETED)
        return reading.done()

    def _draft_on(self) -> None:
        if self._provisional is None or (self._drafting and not self._drafting.done()):
            return
        # After a segment that was the last one for now, the next try has to wait for the next check.
        more = self._drafting is None or self._drafting.result()
        self._drafting = asyncio.ensure_future(self._provisional.go_on(self._session.truth)) if more else None


async def _next(commits: AsyncGenerator[Commit, None]) -> Commit:
    return await anext(commits)
