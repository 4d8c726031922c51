"""Messages to the service manager (systemd's sd_notify protocol): ready, still alive, stopping.

Sends datagrams to the socket in $NOTIFY_SOCKET; without the variable it sends nothing.
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)


def send(state: str, patience: float = 1.0) -> None:
    """Send e.g. "READY=1"; gives up on a manager that does not accept it within `patience` seconds."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # "@": Linux's abstract namespace
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.settimeout(patience)
            client.sendto(state.encode(), address)
    except OSError as error:
        log.warning("the service manager at %s does not accept %s: %s", path, state, error)


def stopping(seconds: float) -> None:
    """The service drains, which takes up to `seconds`; it takes no new work.

    The manager then waits so long, though TimeoutStopSec= of the unit be shorter.
    """
    send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}")


@asynccontextmanager
async def announce() -> AsyncIterator[None]:
    """Send READY=1, then WATCHDOG=1 at half the requested interval while the event loop runs."""
    send("READY=1")
    alive = asyncio.ensure_future(_stay_alive(watchdog_seconds()))
    try:
        yield
    finally:
        alive.cancel()
        await asyncio.gather(alive, return_exceptions=True)


async def _stay_alive(seconds: float) -> None:
    while seconds:
        send("WATCHDOG=1", patience=0.0)  # the next one is never far
        await asyncio.sleep(seconds / 2)


def watchdog_seconds() -> float:
    """Seconds for which the manager waits for WATCHDOG=1; 0 = no watchdog."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not usec.isdigit() or pid not in ("", str(os.getpid())):
        return 0.0
    return int(usec) / 1e6
