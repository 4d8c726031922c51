"""The metrics port: metrics and probes over HTTP, for this machine or, with TLS and keys, for the network."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from opensled.core.errors import OpenSledError, Unauthorized
from opensled.core.files import server_context, user_path
from opensled.metrics.registry import Metric, registry
from opensled.metrics.scrape_guard import ScrapeGuard
from opensled.net.address import calls_loopback, families, host_port, is_local, join_host_port
from opensled.net.probes import LIVE, READY, Probes
from opensled.process.watched_file import Watched

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

PATIENCE = 5.0  # seconds for the next bytes of a request
ACCEPT_PAUSE = 0.5  # seconds without new connections after one could not be accepted
MAX_CONNECTIONS = 64  # at the same time; the oldest one gives way. Chosen
PLAIN = [("Content-Type", "text/plain; charset=utf-8")]


class MetricsPort:
    """The metrics of this process at `url`, and its probes, served by its own thread until `close`."""

    def __init__(
        self,
        address: str,
        metrics: Sequence[Metric],
        probes: Probes | None = None,
        guard: ScrapeGuard = ScrapeGuard(),
    ) -> None:
        """Raises OpenSledError if `address` ("host:port") is taken, UsageError for an unusable certificate."""
        host, port = host_port(address)
        app = _route(_require_key(_as_text(make_wsgi_app(registry(metrics))), guard), probes or Probes())
        if is_local(address):
            app = _for_this_machine(app)
        files = [user_path(path) for path in (guard.cert, guard.key)]
        certificate = Watched(files, partial(server_context, *files)) if guard.cert else None
        try:
            self._server = make_server(host, port, app, _Server, _Handler)
        except OSError as error:
            raise OpenSledError(
                f"cannot listen on {address}: {os.strerror(error.errno or 0)}; choose another --metrics"
            ) from error
        self._server.certificate = certificate
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = join_host_port(host, self._server.server_port)
        self.url = f"http{'s' if certificate else ''}://{self.address}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _route(metrics: App, probes: Probes) -> App:
    """Each path has its page; a probe needs no key."""

    def page(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return metrics(environ, start_response)
        if path == LIVE:
            return _answer_probe(probes.stuck(), "alive", start_response)
        if path in READY:
            return _answer_probe(probes.stuck() or probes.unready(), "ready", start_response)
        paths = ", ".join(("/metrics", LIVE, *READY))
        return _answer("404 Not Found", f"there is no such page; here are {paths}", start_response)

    return page


def _answer_probe(reason: str, state: str, start_response: StartResponse) -> Iterable[bytes]:
    status = "503 Service Unavailable" if reason else "200 OK"
    return _answer(status, reason or state, start_response)


def _answer(
    status: str, line: str, start_response: StartResponse, *headers: tuple[str, str]
) -> Iterable[bytes]:
    start_response(status, [*PLAIN, *headers])
    return [f"{line}\n".encode()]


def _require_key(page: App, guard: ScrapeGuard) -> App:
    """`page` for those with a key, where the guard wants one."""
    admit = guard.admit
    if admit is None:
        return page

    def page_with_key(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        try:
            admit(environ.get("HTTP_AUTHORIZATION", ""))
        except Unauthorized as error:
            asks = ("WWW-Authenticate", "Bearer")
            return _answer("401 Unauthorized", str(error), start_response, asks)
        return page(environ, start_response)

    return page_with_key


def _as_text(page: App) -> App:
    """`page` in the text format, whatever else a scraper would take.

    Prometheus 2 prefers OpenMetrics, in which prometheus_client 0.26 writes `_` for the `:` in our names.
    """

    def plain(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return page({**environ, "HTTP_ACCEPT": "text/plain;version=0.0.4"}, start_response)

    return plain


def _for_this_machine(page: App) -> App:
    """`page` for a port on loopback: pages of the web that point their own name at it are refused (DNS rebinding)."""

    def local_page(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "")
        if not host or calls_loopback(host):  # pages always send one
            return page(environ, start_response)
        words = "these metrics are at 127.0.0.1 or localhost; another name needs --metrics on its address"
        return _answer("403 Forbidden", words, start_response)

    return local_page


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: scrapes are frequent, and a log line each would bury the others."""


class _Server(ThreadingWSGIServer):
    """One thread for each connection."""

    request_queue_size = 2 * MAX_CONNECTIONS  # with 5, a connection in a burst is tried again after a second
    certificate: Watched[ssl.SSLContext] | None = None  # without it connections are not encrypted

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = families(address[0])[0]
        self._open: dict[int, socket.socket] = {}  # by file descriptor, the oldest first
        self._counting = Lock()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family is socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # at [::] over IPv4, too
        super().server_bind()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # no file descriptor is left: `serve_forever` would try again at once, and again
            time.sleep(ACCEPT_PAUSE)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Slow clients do not keep a scraper or a probe out: they are the oldest."""
        with self._counting:
            self._open[request.fileno()] = request
            if len(self._open) > MAX_CONNECTIONS:
                oldest = self._open.pop(next(iter(self._open)))
                with suppress(OSError):  # it has just ended by itself
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread then reads the end
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake takes place here, in the thread of the connection."""
        number = request.fileno()
        try:
            if self.certificate is None:
                super().finish_request(request, client_address)
                return
            request.settimeout(PATIENCE)
            with self.certificate.current().wrap_socket(request.dup(), server_side=True) as encrypted:
                super().finish_request(encrypted, client_address)
        finally:
            with self._counting:
                self._open.pop(number, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that leaves or stalls is its own affair."""
