"""The gRPC port of a server that serves, and that one day drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from opensled.core.errors import OpenSledError
from opensled.net.address import listener
from verify_server.access.security import Tls
from verify_server.front import service

log = logging.getLogger(__name__)

# To listen anew, and seconds between two tries; chosen: gRPC takes milliseconds to let go of a port.
TRIES, PAUSE = 500, 0.002
# Connections that still come: a balancer may not know yet. Chosen below the 1.5 s for which a device tries to open.
PASSING = (("grpc.max_connection_age_ms", 500),)


class GrpcPort:
    """Serves one front end at one address, with one readiness."""

    def __init__(
        self, frontend: service.GrpcFrontend, listen: str, tls: Tls | None, readiness: service.Readiness
    ) -> None:
        """`listen`: HOST:PORT, and no port 0."""
        self._frontend, self._listen, self._tls = frontend, listen, tls
        self.readiness = readiness
        self._servers = list[service.Server]()
        self._ending = list[asyncio.Future[None]]()

    async def open(self, options: Sequence[tuple[str, int]] = ()) -> None:
        """Raises OpenSledError if the address is taken. `options`: of gRPC."""
        server, _ = await service.start(self._frontend, self._listen, self._tls, self.readiness, options)
        self._servers.append(server)

    async def send_away(self, seconds: float) -> None:
        """Tell all clients to connect anew (GOAWAY), where a balancer leads them to another server; streams that are
        open go on for up to `seconds`.

        Who comes here again, because there is no other server, is answered: with its session, or with a refusal.
        """
        # Never cancelled: that would cancel gRPC's own future.
        self._ending += [asyncio.ensure_future(server.stop(seconds)) for server in self._servers]
        try:
            await _free(self._listen)
            await self.open(PASSING)
        except OpenSledError as error:
            log.warning("while this server drains, lost readers do not find it again: %s", error)

    async def stop(self, grace: float) -> None:
        """End; streams that are open go on for up to `grace` seconds."""
        await asyncio.gather(*(server.stop(grace) for server in self._servers), *self._ending)


async def _free(listen: str) -> None:
    """Until the address is free, but not for long: gRPC itself writes a line for each try that comes too early."""
    for _ in range(TRIES):
        await asyncio.sleep(PAUSE)
        with contextlib.suppress(OSError):
            listener(listen).close()
            return
