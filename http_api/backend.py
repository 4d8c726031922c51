"""Who answers the requests of the API: a device with its server behind it, or a server itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, MutableMapping
from typing import Any, Protocol, TypeVar

from opensled.core.answer import Chunk, Task
from opensled.core.messages import ModelInfo
from opensled.drafting.status import DraftStatus
from opensled.text.tokenizer import TargetTokenizer

HEARTBEAT = 5.0  # seconds between the comments in a stream; proxies give up after 30 to 60

SPENT = "opensled.spent"  # in an ASGI scope: told the seconds of processor time that reading a request took

T = TypeVar("T")
# One answer, in chunks; the last one carries the finish reason and the statistics. Closing it ends the work
Answer = Callable[[Task], AsyncGenerator[Chunk, None]]


class Backend(Protocol):
    """What the API needs of it. The target may change between two requests."""

    @property
    def info(self) -> ModelInfo:
        """The target."""

    @property
    def tokenizer(self) -> TargetTokenizer:
        """The target's."""

    @property
    def rule(self) -> str:
        """The acceptance rule of its answers."""

    @property
    def server_away(self) -> bool:
        """Whether the server cannot be reached just now."""

    @property
    def unready(self) -> str:
        """Why no request would be answered now; "" = one would be."""

    @property
    def refusal(self) -> str:
        """Why the server answers this backend nothing although it is there; "" = it does."""

    @property
    def writes_alone(self) -> bool:
        """Whether its draft model may answer without the target (http_api/model_names.py)."""

    @property
    def status(self) -> DraftStatus:
        """How it answers just now, and why."""

    def answering(self, scope: MutableMapping[str, Any]) -> Answer:
        """How tasks of one request, which came with this ASGI scope, are answered."""


async def reading(scope: MutableMapping[str, Any], work: Callable[[], T], is_large: bool) -> T:
    """What `work` returns; if that is large, other answers go on meanwhile.

    Counts its processor time as spent for the client of this request, if the server counts it.
    """
    seconds = 0.0

    def measure_time() -> T:
        nonlocal seconds
        started = time.thread_time()
        try:
            return work()
        finally:
            seconds = time.thread_time() - started

    try:
        return await asyncio.to_thread(measure_time) if is_large else measure_time()
    finally:
        if spent := scope.get(SPENT):
            spent(seconds)
