"""The end of a server: answers under way end in time, or go on at another server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from verify_server.admission.session_manager import SessionManager
from verify_server.front.grpc_port import GrpcPort

if TYPE_CHECKING:
    from verify_server.front.http_front import HttpFront

log = logging.getLogger(__name__)

# Seconds for the last messages of answers to be read, and after that for threads to end; native code that goes on is
# left. Chosen.
LAST_MESSAGES_SECONDS = 2.0
EXIT_SECONDS = 3.0


def longest_end(seconds: float) -> float:
    """Seconds until a process that drains for `seconds` has ended."""
    return seconds + LAST_MESSAGES_SECONDS + EXIT_SECONDS


async def drain(
    manager: SessionManager,
    port: GrpcPort,
    http: HttpFront | None,
    seconds: float,
    again: Coroutine[Any, Any, object],
) -> None:
    """Wait for the answers under way of a server that takes no new ones; after `seconds`, or `again`, which is a second
    signal, send the devices of the rest elsewhere, and end answers over HTTP with what they have."""
    sessions = manager.loop.machine.sessions
    if sessions:
        words = "draining for up to %g s, or until a second signal; sequences under way: %d"
        log.warning(words, seconds, len(sessions))
    if http:
        http.server.send_away()
    await port.send_away(seconds + LAST_MESSAGES_SECONDS)
    ended = await until_first(http.over(manager.idle) if http else manager.idle(), again, seconds)
    if sessions:
        log.warning("sequences that have not ended, whose devices are sent elsewhere: %d", len(sessions))
    if http and not ended:
        http.ending.set()  # answers over HTTP cannot go on elsewhere: they end with the text so far
    manager.hand_over()
    await asyncio.gather(port.stop(LAST_MESSAGES_SECONDS), last_bytes(http))


async def until_first(
    one: Coroutine[Any, Any, object], other: Coroutine[Any, Any, object], seconds: float
) -> bool:
    """Until one of both is done, or for `seconds`; the rest is cancelled. Returns whether the first one is done."""
    waiting = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return waiting[0] in done


async def last_bytes(http: HttpFront | None) -> None:
    """Until clients over HTTP have all of the answers that have ended, within `LAST_MESSAGES_SECONDS`."""
    if http:
        await http.server.wait_for_answers(LAST_MESSAGES_SECONDS)
