"""The sequences of the HTTP API at a gateway: replicas serve them, through the gateway."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opensled.core.errors import Unreachable
from opensled.text.tokenizer import TargetTokenizer
from opensled.wire import codec
from verify_server.cluster.gateway import CONSTANT_CALLS, Gateway
from verify_server.front.sequences import ServedModel

NO_MODEL = "no replica has served yet; try again"
LOOK_SECONDS = 0.2  # between two looks for a replica that tells of its target; chosen


class GatewaySequences:
    """See `Sequences`. The target is known once a replica has served."""

    patience = 30.0  # a replica takes so long to be replaced, if another one does not take over at once

    def __init__(self, gateway: Gateway) -> None:
        self.clients, self.tenants, self.refused = gateway.clients, gateway.tenants, gateway.stats.refused
        self.answers, self.answer, self._gateway = gateway.stats.answers, gateway.answer, gateway
        self._model: ServedModel | None = None

    def model(self) -> ServedModel:
        if self._model is None:
            raise Unreachable(NO_MODEL)
        return self._model

    @property
    def unready(self) -> str:
        if self._model is None:
            return NO_MODEL
        return self._gateway.unready

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[GatewaySequences]:
        """While inside, the target becomes known as soon as a replica tells of it."""
        asking = asyncio.ensure_future(self._learn())
        try:
            yield self
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _learn(self) -> None:
        while self._model is None:
            with contextlib.suppress(Unreachable):
                described, tokenizer = [await self._gateway.ask(name, b"") for name in CONSTANT_CALLS]
                self._model = ServedModel(
                    codec.decode_description(described), TargetTokenizer(codec.tokenizer_json(tokenizer))
                )
            await asyncio.sleep(LOOK_SECONDS)
