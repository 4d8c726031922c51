"""The health checks of the images: exit code 0 if the service on a port of this container works.

`healthy.py http PORT`: a device's API answers; `https PORT`: a server's metrics port, with TLS, says that it is ready;
`grpc PORT`: a server without TLS says SERVING; `port PORT`: a process listens there, which is checked without
connecting, because a connection to a relay goes on to the server.
"""

import http.client
import ssl
import sys
from collections.abc import Callable
from pathlib import Path

PATIENCE = 5.0  # seconds
LISTENING = "0A"  # a socket's state in /proc/net/tcp


def answers_http(port: int) -> bool:
    """Whether GET /health says 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request("GET", "/health")
    return connection.getresponse().status == 200


def is_ready(port: int) -> bool:
    """Whether GET /readyz says 200; the certificate is that of another name than this loopback's."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
    connection.request("GET", "/readyz")
    return connection.getresponse().status == 200


def serves_grpc(port: int) -> bool:
    """Whether the gRPC health service says that the whole server is serving."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


def listens(port: int) -> bool:
    """Whether a socket of this network namespace listens on the port."""
    rows = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return any(int(row[1].rpartition(":")[2], 16) == port and row[3] == LISTENING for row in rows)


CHECKS: dict[str, Callable[[int], bool]] = {
    "http": answers_http,
    "https": is_ready,
    "grpc": serves_grpc,
    "port": listens,
}


def main(arguments: list[str]) -> int:
    """Run the check that the arguments name; an error becomes one line, which `docker inspect` shows."""
    kind, port = arguments
    try:
        return 0 if CHECKS[kind](int(port)) else 1
    except Exception as error:
        print(f"{kind} check of port {port}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
