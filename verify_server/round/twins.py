"""Twins: sessions that would compute the same KV block in the same step. One of them computes it, the others wait.

A block can be found only after it is computed (verify_server/kv/prefix.py), so sessions that arrive together with the
same prompt, or the same long beginning, would each compute all of it. The first of them in the step computes it: the
oldest, unless the policy chooses another order. A session waits for one step at a time, only for a block that exists
after this very step, and only for a session that is certainly in the step. So it progresses by a block with each step
that it waits, and never waits for a session that is cancelled, preempted or not planned.
"""

from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.kv.prefix import reusable_blocks
from verify_server.round.sequence import Sequence
from verify_server.round.session import Session


def adopts(session: Session, block_size: int) -> bool:
    """Whether a session takes over cached KV: it has more than a block to compute, for a reader."""
    return session.sequence.uncomputed > block_size and session.has_reader


class StepBlocks:
    """The KV blocks that one step completes, by the keys of their content."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._keys: set[bytes] = set()

    def add(self, session: Session, tokens: int) -> None:
        """The step computes the next `tokens` of a session's text."""
        if self._pool.prefixes is not None:
            self._keys.update(self._coming(session.sequence, tokens))

    def spare(self, session: Session) -> bool:
        """Whether the session must wait, since it can find its next block after the step."""
        size = self._pool.block_size
        if not self._keys or not adopts(session, size):
            return False
        return not self._keys.isdisjoint(self._coming(session.sequence, size))

    def _coming(self, sequence: Sequence, tokens: int) -> list[bytes]:
        """The keys of the blocks that can be found after the next `tokens` of a text are computed."""
        size = self._pool.block_size
        first, last = sequence.computed // size, (sequence.computed + tokens) // size
        if first == last:  # nearly always: a round computes a few tokens
            return []
        last = min(last, reusable_blocks(sequence.confirmed, size))
        table = sequence.memory
        assert isinstance(table, BlockTable), "who asks has a pool of blocks"
        return [table.key(number, sequence.tokens) for number in range(first, last)]
