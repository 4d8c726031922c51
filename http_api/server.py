"""Serves the API over HTTP: clients that stall are let go, and without file descriptors the server waits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

GRACE = 5.0  # seconds in which answers under way may finish after `stop`
CLOSING = 3.0  # seconds after that to tell the clients and the verification server that the answers ended
PATIENCE = 30.0  # seconds for a request to arrive, from its first byte or the connection's start to its last
BACKLOG = 2048  # connections that the kernel keeps until they are accepted
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(H11Protocol):
    """A connection whose requests must arrive within `patience` seconds each; else it ends with status 408.

    uvicorn itself waits for ever: a client that sends a byte now and then would hold a connection (slowloris).
    """

    def __init__(self, *, patience: float, **connection: Any) -> None:
        super().__init__(**connection)
        self._patience = patience
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.cycle.response_complete:  # the next request had arrived meanwhile, perhaps in part
            self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _time(self) -> None:
        """Let the timer run as long as a request is arriving; more bytes do not prolong it."""
        if self.cycle and not self.cycle.response_complete and not self.cycle.more_body:
            self._stop_timer()
        elif self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(self._patience, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(TOO_LATE)
        self.transport.close()


class _Uvicorn(uvicorn.Server):
    ending: asyncio.Event

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its shutdown and end the process before the backend is closed."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio tries to accept as many connections at once as `backlog` says, and before Python 3.13 goes on after
        it has found no file descriptor: so it is told 1, and the kernel what is meant."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn itself would only cut connections, without an error in the stream or a Cancel to the server."""
        timer = asyncio.get_running_loop().call_later(GRACE, self.ending.set)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()


class ApiServer:
    """Serves an app on a listening socket until told to stop."""

    def __init__(
        self,
        app: Starlette,
        ending: asyncio.Event,
        cert: str = "",
        key: str = "",
        patience: float = PATIENCE,
    ) -> None:
        """`ending`, once set, must end the answers of `app`. With TLS if `cert` and `key` name PEM files.

        `patience`: seconds for a request to arrive.
        """
        config = uvicorn.Config(
            app,
            http=partial(PatientProtocol, patience=patience),  # type: ignore[arg-type]
            log_config=None,
            log_level=None,
            lifespan="off",
            backlog=1,
            timeout_graceful_shutdown=int(GRACE + CLOSING),
            ssl_certfile=Path(cert).expanduser() if cert else None,
            ssl_keyfile=Path(key).expanduser() if key else None,
        )
        self._server = _Uvicorn(config)
        self._server.ending = ending
        logging.getLogger("uvicorn.access").addFilter(without_query)

    async def run(self, listener: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(_explain_exhaustion)
        await self._server.serve(sockets=[listener])

    def stop(self) -> None:
        """Let the answers under way finish for `GRACE` seconds, then end `run`; asked again, end them at once."""
        if self._server.should_exit:
            self._server.ending.set()
        self._server.should_exit = True


def without_query(record: logging.LogRecord) -> bool:
    """Filter of the access log: takes the query off the path, since a client may have put a prompt or a key there."""
    if isinstance(record.args, tuple):
        record.args = tuple(_path(value) for value in record.args)
    return True


def _path(value: object) -> object:
    return value.partition("?")[0] if isinstance(value, str) else value


def _explain_exhaustion(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """One line where asyncio has a traceback: no connection can be accepted, and asyncio tries again in a second."""
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in EXHAUSTED and "socket" in context:
        log.error(
            "no new connection can be accepted for a second (%s); allow this process more files: ulimit -n, or "
            "LimitNOFILE= of its systemd unit",
            error.strerror,
        )
    else:
        loop.default_exception_handler(context)
