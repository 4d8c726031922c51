"""KV memory as sequences, admission and metrics see it: in positions, which are tokens. How it is divided is a matter
of the target.

Both classes here account for nothing: they serve a target whose KV is another program's matter. Targets over our
engines have KV blocks (blocks.py, block_memory.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

ENDLESS = 1 << 30  # positions: no draft is cut for want of memory
NOTHING: Mapping[int, int] = MappingProxyType({})


class SequenceMemory:
    """The KV of one sequence."""

    blocks: Sequence[int] = ()  # KV blocks that hold it, in order; () = there are none to name
    # Of positions whose KV does not follow from their token, what it follows from (a row of a picture)
    content: Mapping[int, int] = NOTHING

    @property
    def frozen(self) -> int:
        """Positions [0, frozen) are never written again."""
        return 0

    def reach(self) -> int:
        """Positions [0, reach) that it can cover without a preemption."""
        return ENDLESS

    def grow(self, length: int) -> None:
        """Cover positions [0, length); may raise OutOfBlocks, and changes nothing then."""

    def truncate(self, length: int) -> None:
        """Give back what is behind `length` positions. This is the whole rollback."""

    def clear(self) -> None:
        """Give everything back."""

    def is_own(self, start: int) -> bool:
        """Whether no other sequence reads positions from `start` on."""
        return True

    def publish(self, tokens: Sequence[int], computed: int) -> None:
        """Positions [0, computed) hold committed `tokens`: others may find them."""

    def adopt(self, tokens: Sequence[int], computed: int) -> int:
        """Continue after `computed` positions with what others computed of the committed `tokens`; returns the number
        of positions that are computed then."""
        return computed

    def withdraw(self) -> None:
        """The KV of this sequence may be wrong: from now on no other sequence finds it."""


class TargetMemory:
    """The KV memory of one target."""

    tokens = ENDLESS  # that it holds at most
    # Tokens that one key of `prefixes` stands for. Chosen: as many as a KV block has in most engines.
    prefix_size = 16

    def states(self) -> dict[str, int]:
        """Its tokens, each counted once: "free", "cached" (free, and can be reused), "used", "shared" by several."""
        return {"free": self.tokens}

    @property
    def hits(self) -> int:
        """Tokens that were reused instead of computed."""
        return 0

    @property
    def evicted(self) -> int:
        """Tokens that could be reused, and lost their KV."""
        return 0

    @property
    def free(self) -> int:
        """Tokens that no sequence holds."""
        states = self.states()
        return states["free"] + states.get("cached", 0)

    def count_held(self, tenant: str) -> int:
        """Tokens that the tenant's sequences hold, shared ones counted once."""
        return 0

    def room_beside(self, others: Iterable[SequenceMemory]) -> int:
        """Tokens that a new sequence finds if of all sequences only these `others` keep what they have."""
        return self.free

    def prefixes(self) -> frozenset[bytes]:
        """Keys (verify_server/kv/prefix.py) of the beginnings of texts that were used last, to place sequences by."""
        return frozenset()

    def place(self, tenant: str, budget: int, content: Mapping[int, int]) -> SequenceMemory:
        """The memory of a new sequence. `budget`: tokens that all sequences of the tenant may hold together, 0 = no
        limit; `content`: see `SequenceMemory`."""
        return SequenceMemory()
