"""What a device knows of its server between two answers: whether it can be reached, and whether it still lets it in."""

from __future__ import annotations

import asyncio
import logging
import time

from edge_client.link.link import Link
from opensled.core.errors import OpenSledError, Unauthorized

log = logging.getLogger(__name__)

EVERY_S = 10.0  # between two questions whether the device is still let in; chosen
# For which a refusal answers further requests: apps that ask on and on must not hammer the server. Chosen.
FRESH_S = 1.0


class ServerWatch:
    """`away` and `refusal` as they were last heard."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.away = False
        self.refusal = ""  # why the server lets this device in no more, and the next step; "" = it does
        self._refused = (0.0, "")  # when, and which token

    async def run(self) -> None:
        """Notice and log changes, until it is cancelled."""
        await asyncio.gather(self._presence(), self._admission())

    async def _presence(self) -> None:
        async for present in self._link.presence():
            if present == self.away:
                log.warning("the server %s is %s", self._link.server, "back" if present else "away")
            self.away = not present

    async def _admission(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if not self.away:
                await self._ask()

    async def _ask(self) -> None:
        try:
            await self._link.describe()
        except Unauthorized as error:
            self.note_refusal(error)
        except OpenSledError:
            return  # whether it can be reached is the other question
        else:
            self.note_admission()

    def note_refusal(self, error: Unauthorized) -> None:
        """The server does not let this device in: its token was revoked or replaced, or its certificate."""
        server = self._link.server
        cause = str(error).removeprefix(f"{server}: ")
        words = f"the server at {server} refuses this device, whose key was revoked or replaced: {cause}"
        if not self.refusal:
            log.warning(words)
        self.refusal, self._refused = words, (time.monotonic(), self._link.bearer)

    def require_admitted(self) -> None:
        """Raises Unauthorized where the server has just refused this device, and it has no other token since."""
        when, bearer = self._refused
        if self.refusal and time.monotonic() < when + FRESH_S and self._link.bearer == bearer:
            raise Unauthorized(self.refusal)

    def note_admission(self) -> None:
        """It does."""
        if self.refusal:
            log.warning("the server lets this device in again")
        self.refusal = ""
