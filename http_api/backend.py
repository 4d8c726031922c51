"""Who answers the requests of the API: a device with its server behind it, or a server itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from opensled.answer import Chunk, Task
from opensled.messages import ModelInfo
from opensled.tokenizer import TargetTokenizer

HEARTBEAT = 5.0  # seconds between the comments in a stream; proxies give up after 30 to 60

Answers = AsyncGenerator[Chunk, None]  # one answer; closing it ends the work
Answer = Callable[[Task], Answers]


class BackendStatus(Protocol):
    """How answers are made just now."""

    def figures(self) -> dict[str, Any]:
        """As JSON."""


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
    def ready(self) -> bool:
        """Whether a request would be answered now."""

    @property
    def status(self) -> BackendStatus:
        """How it answers just now, and why."""

    def answer(self, task: Task) -> Answers:
        """One answer, in chunks; the last one carries the finish reason and the statistics."""
