"""What the API needs of a device, and nothing more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from edge_client.answer import Chunk
from opensled.messages import ModelInfo, Prompt, SamplingParams


class Backend(Protocol):
    """Answers prompts. `info` is what the server says of itself."""

    info: ModelInfo

    def answer(
        self, prompt: Prompt, params: SamplingParams, stop: tuple[str, ...] = ()
    ) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; only its last chunk has a finish reason and statistics.

        Raises errors of `opensled.errors`, before the first chunk or between two. Closing the generator, or
        cancelling whoever waits for it, ends the sequence on the server.
        """
