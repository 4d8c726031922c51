"""uvicorn with a socket and signal handlers that belong to the caller."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

GRACE = 5.0  # seconds in which answers under way may finish after `stop`
CLOSING = 3.0  # seconds after that to tell the clients and the verification server that the answers ended


class _Uvicorn(uvicorn.Server):
    ending: asyncio.Event

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its shutdown and end the process before the device is closed."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn itself would only cut connections, without an error in the stream or a Cancel to the server."""
        timer = asyncio.get_running_loop().call_later(GRACE, self.ending.set)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


class ApiServer:
    """Serves an app on a listening socket until told to stop."""

    def __init__(self, app: Starlette, ending: asyncio.Event, cert: str = "", key: str = "") -> None:
        """`ending`, once set, must end the answers of `app`. With TLS if `cert` and `key` name PEM files."""
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=None,
            lifespan="off",
            timeout_graceful_shutdown=int(GRACE + CLOSING),
            ssl_certfile=Path(cert).expanduser() if cert else None,
            ssl_keyfile=Path(key).expanduser() if key else None,
        )
        self._server = _Uvicorn(config)
        self._server.ending = ending

    async def run(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])

    def stop(self) -> None:
        """Let the answers under way finish for `GRACE` seconds, then end `run`; asked again, end them at once."""
        if self._server.should_exit:
            self._server.ending.set()
        self._server.should_exit = True
