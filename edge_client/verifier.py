"""What the edge loop talks to: the keeper of one sequence's truth."""

from typing import Protocol

from opensled.messages import Draft, Limits, Verdict
from opensled.protocol import Truth
from opensled.turns import Turn


class OpenSequence(Protocol):
    """One open sequence as its device knows it: the reader tells `truth` and `turn` each verdict (`turns.hear`)."""

    truth: Truth
    turn: Turn
    limits: Limits


class Verifier(OpenSequence, Protocol):
    """The keeper of one open sequence's truth: a server behind a link, or a bigger server behind a server.

    Verdicts also come unasked (the server decodes when no draft comes), so asking and hearing are two calls.
    """

    noise_key: bytes
    draft_probs: bool  # whether drafts must name the distribution they were drawn from

    async def submit(self, draft: Draft) -> None:
        """Propose a block; a later one replaces it. Never waits for the verdict."""

    async def next_verdict(self) -> Verdict:
        """The next verdict; it never leaves a gap behind `truth`. Raises what ended the sequence."""

    async def close(self) -> None:
        """The reader is done: free everything."""
