"""The metrics port: one page over HTTP, for programs on this machine or, if wanted, on the network."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from opensled.address import calls_loopback, host_port, is_local, joined
from opensled.errors import OpenSledError
from opensled.metrics import Metric, registry

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

PATIENCE = 5.0  # seconds for the next bytes of a request
ACCEPT_PAUSE = 0.5  # seconds without new connections after one could not be accepted


class MetricsPort:
    """The metrics of this process at http://ADDRESS/metrics, served by its own thread until `close`."""

    def __init__(self, address: str, metrics: Sequence[Metric]) -> None:
        """Raises OpenSledError if `address` ("host:port") is taken."""
        host, port = host_port(address)
        page: App = _as_text(make_wsgi_app(registry(metrics)))
        if is_local(address):
            page = _for_this_machine(page)
        try:
            self._server = make_server(host, port, page, _Server, _Handler)
        except OSError as error:
            raise OpenSledError(
                f"cannot listen on {address}: {os.strerror(error.errno or 0)}; choose another --metrics"
            ) from error
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = joined(host, self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _as_text(page: App) -> App:
    """`page` in the text format, whatever else a scraper would take.

    Prometheus 2 prefers OpenMetrics, in which prometheus_client 0.26 writes `_` for the `:` in our names.
    """

    def plain(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return page({**environ, "HTTP_ACCEPT": "text/plain;version=0.0.4"}, start_response)

    return plain


def _for_this_machine(page: App) -> App:
    """`page` for a port on loopback: pages of the web that point their own name at it are refused (DNS rebinding)."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if calls_loopback(environ.get("HTTP_HOST", "")):
            return page(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"these metrics are at 127.0.0.1 or localhost; another name needs --metrics on its address\n"]

    return guarded


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *values: Any) -> None:
        """Nothing: scrapes are frequent, and a log line each would bury the others."""


class _Server(ThreadingWSGIServer):
    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # no file descriptor is left: `serve_forever` would try again at once, and again
            time.sleep(ACCEPT_PAUSE)
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that leaves or stalls is its own affair."""
