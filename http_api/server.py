"""Serves the API over HTTP; without file descriptors the server waits."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from http_api.exchange import Exchanges
from http_api.http_connection import CLOSE, ConnectionLimits, PatientProtocol
from opensled.core.files import server_context, user_path
from opensled.process.watched_file import CHECK_SECONDS, Watched

log = logging.getLogger(__name__)

GRACE = 5.0  # seconds in which answers under way may finish after `stop`
CLOSING = 3.0  # seconds after that to tell the clients and the verification server that the answers ended
# Seconds for which an idle connection stays: longer than proxies and clients keep theirs (nginx, HAProxy and AWS 60,
# Google 600), so that none is closed just when a request is sent
KEEP_ALIVE = 620
LAST_REQUEST_S = 1  # for which an idle connection may bring another request, before it is closed; chosen
STOP_SECONDS = 2.0  # where nothing may finish: for the last bytes of answers to be read; chosen
BACKLOG = 2048  # connections that the kernel keeps until they are accepted
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        app: ASGIApp,
        ending: asyncio.Event,
        cert: str = "",
        key: str = "",
        limits: ConnectionLimits = ConnectionLimits(),
        client_ca: str = "",
    ) -> None:
        """`ending`, once set, must end the answers of `app`. With TLS if `cert` and `key` name PEM files; then with
        `client_ca` (PEM file) only for clients with a certificate of that authority.
        """
        self._parting = asyncio.Event()
        config = uvicorn.Config(
            Exchanges(_last_on_connection(app, self._parting)),
            http=partial(PatientProtocol, limits=limits, connected=Counter()),  # type: ignore[arg-type]
            h11_max_incomplete_event_size=limits.headers,
            ws="none",
            proxy_headers=False,  # anybody could write them, and limits go by address
            log_config=None,
            log_level=None,
            access_log=False,  # http_api/exchange.py has a better one
            lifespan="off",
            backlog=1,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(GRACE + CLOSING),
            ssl_certfile=user_path(cert) if cert else None,
            ssl_keyfile=user_path(key) if key else None,
            ssl_ca_certs=str(user_path(client_ca)) if client_ca else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE,
        )
        self._server = _Uvicorn(config)
        self._server.ending = ending

    async def run(self, *listeners: socket.socket) -> None:
        asyncio.get_running_loop().set_exception_handler(_explain_exhaustion)
        config = self._server.config
        config.load()
        renewing = asyncio.ensure_future(renew_certificate(config))
        try:
            await self._server.serve(sockets=list(listeners))
        finally:
            renewing.cancel()

    @contextlib.asynccontextmanager
    async def serving(self, *listeners: socket.socket) -> AsyncIterator[asyncio.Future[None]]:
        """While inside, the app is served on `listeners`; leaving ends the answers that still run, and closes them.

        Yields what is done once the server has ended, as after `stop`.
        """
        running = asyncio.ensure_future(self.run(*listeners))
        try:
            yield running
        finally:
            self.stop()
            self.stop()  # what runs until now does not end by itself
            await asyncio.wait({running}, timeout=STOP_SECONDS)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            for listener in listeners:
                listener.close()

    def send_away(self) -> None:
        """Close each connection after one more request, or soon if there comes none: a balancer leads the next one
        elsewhere."""
        self._parting.set()
        for connection in self._connections:
            connection.part(LAST_REQUEST_S)

    @property
    def waiting(self) -> bool:
        """Whether a last request may still come, or waits for the first byte of its answer."""
        return any(connection.waiting for connection in self._connections)

    @property
    def _connections(self) -> tuple[PatientProtocol, ...]:
        found: Iterable[Any] = self._server.server_state.connections
        return tuple(found)

    async def wait_for_answers(self, seconds: float) -> None:
        """Until all answers have been written to the last byte, or for `seconds`."""
        if under_way := tuple(self._server.server_state.tasks):
            await asyncio.wait(under_way, timeout=seconds)

    def stop(self) -> None:
        """Let the answers under way finish for `GRACE` seconds, then end `run`; asked again, end them at once."""
        if self._server.should_exit:
            self._server.ending.set()
        self._server.should_exit = True


def _last_on_connection(app: ASGIApp, parting: asyncio.Event) -> ASGIApp:
    """`app`, whose answers end their connections from `parting` on (RFC 9112, section 9.6)."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if parting.is_set() and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await app(scope, receive, send_with_close)

    return serve


async def renew_certificate(config: uvicorn.Config, every: float = CHECK_SECONDS) -> None:
    """New connections get the certificate that the files hold then, looked at each `every` seconds."""
    context, files = config.ssl, (config.ssl_certfile, config.ssl_keyfile)
    if context is None or files[0] is None or files[1] is None:
        return
    cert, key = map(str, files)

    def read() -> object:
        """Tried on another context first: a failure would leave this one with a key of another certificate."""
        server_context(cert, key)
        context.load_cert_chain(cert, key)
        return None

    watched = Watched((cert, key), read)
    while True:
        await asyncio.sleep(every)
        watched.current(at_once=True)


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
