"""What an answer hears while nothing is committed: that the server reads the prompt, or for how long it is silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from edge_client.link.remote import RemoteSession
from edge_client.offline.modes import Offline
from edge_client.offline.provisional import ProvisionalDrafting
from edge_client.round.commits import Commit
from opensled.core.messages import Prefill


async def watch_commits(
    commits: AsyncGenerator[Commit, None],
    session: RemoteSession,
    offline: Offline,
    provisional: ProvisionalDrafting | None = None,
) -> AsyncGenerator[Commit | Prefill | float, None]:
    """The commits; between two of them how far the server has read the prompt, or for how many seconds it is silent.

    `provisional`: drafts while the server is away; None = nothing is drafted then.
    """
    reading: asyncio.Future[Commit | None] | None = None
    drafting: asyncio.Future[bool] | None = None
    try:
        while True:
            reading, since = asyncio.ensure_future(_next(commits)), time.monotonic()
            while not await _wait_for_commit(reading, drafting, offline.look):
                seconds = time.monotonic() - since
                if session.away or seconds >= offline.quiet:
                    if provisional is not None and (drafting is None or drafting.done()):
                        # After the last segment for now, the next try has to wait for the next check.
                        more = drafting is None or drafting.result()
                        drafting = asyncio.ensure_future(provisional.go_on(session.truth)) if more else None
                    yield session.prefill or seconds
            if (commit := reading.result()) is None:
                return
            yield commit
    finally:
        under_way = [task for task in (reading, drafting) if task is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _next(commits: AsyncGenerator[Commit, None]) -> Commit | None:
    return await anext(commits, None)


async def _wait_for_commit(
    reading: asyncio.Future[Commit | None], drafting: asyncio.Future[bool] | None, seconds: float
) -> bool:
    """Wait for the next commit, at most so many seconds or until more is drafted."""
    waited_for: set[asyncio.Future[Any]] = {reading}
    if drafting and not drafting.done():
        waited_for.add(drafting)
    await asyncio.wait(waited_for, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return reading.done()
