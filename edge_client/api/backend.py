"""What the API needs of a device, and nothing more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from edge_client.answer import Chunk, Task
from edge_client.lengths.status import DraftStatus
from edge_client.tokenizer import EdgeTokenizer
from opensled.messages import ModelInfo


class Backend(Protocol):
    """Answers prompts. `info` is what the server says of itself."""

    info: ModelInfo
    rule: str  # acceptance rule its answers come by
    tokenizer: EdgeTokenizer

    @property
    def status(self) -> DraftStatus:
        """How it drafts just now, and why."""

    def answer(self, task: Task) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; only its last chunk has a finish reason and statistics.

        Raises errors of `opensled.errors`, before the first chunk or between two. Closing the generator, or
        cancelling whoever waits for it, ends the sequence on the server.
        """
