"""What the edge loop talks to: the keeper of one sequence's truth."""

from __future__ import annotations

from typing import Protocol

from opensled.messages import Draft, Limits, Verdict
from opensled.protocol import Truth
from opensled.turns import Turn


class Verifier(Protocol):
    """The truth of one open sequence: a server behind a link, or a bigger server behind a server.

    Verdicts also come unasked (the server decodes when no draft comes), so asking and hearing are two calls.
    """

    truth: Truth  # the reader's copy; the reader extends it with each verdict
    noise_key: bytes
    draft_probs: bool  # whether each draft token must bring the distribution that it was drawn from
    limits: Limits
    turn: Turn  # likewise: the reader tells it each verdict; `submit` tells it the draft

    async def submit(self, draft: Draft) -> None:
        """Propose a block; a later one replaces it. Never waits for the verdict."""

    async def next_verdict(self) -> Verdict:
        """The next verdict; it never leaves a gap behind `truth`. Raises what ended the sequence."""

    async def close(self) -> None:
        """The reader is done: free everything."""
