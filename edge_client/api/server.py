"""uvicorn, tamed: the caller owns the socket and the signals."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its shutdown and kill the process before we close the rest."""
        yield


class ApiServer:
    """Serves an app on a listening socket until told to stop."""

    def __init__(self, app: Starlette, cert: str = "", key: str = "") -> None:
        """With TLS if `cert` and `key` name PEM files."""
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=None,
            lifespan="off",
            timeout_graceful_shutdown=5,
            ssl_certfile=Path(cert).expanduser() if cert else None,
            ssl_keyfile=Path(key).expanduser() if key else None,
        )
        self._server = _Uvicorn(config)

    async def run(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])

    def stop(self) -> None:
        """Finish the answers under way (for a few seconds), then end `run`."""
        self._server.should_exit = True
