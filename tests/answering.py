"""A small HTTP server in this process that says what a test wants: `answering(reply)`."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def answering(
    reply: Callable[[str, bytes], tuple[int, bytes] | None], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """HOST:PORT of a server with this `reply` to path and body of each request: status and body; None = it breaks
    off."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found = reply(self.path, self.rfile.read(int(self.headers.get("Content-Length", 0))))
            if found is None:
                self.close_connection = True
                return
            status, body = found
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
