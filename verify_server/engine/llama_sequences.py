"""Which llama.cpp sequence holds which session's KV: pure bookkeeping, no llama.cpp in it.

The server keeps KV by blocks (verify_server/kv/blocks.py), llama.cpp by (sequence id, position). A sequence's id is the
number of its session's first KV block. That is sound, because a block has one owner: a session that continues at
position > 0 with first block b has held b since it computed position 0 with it, and no other can have used b between.

A block that is given back, or comes with another session, takes everything from there on away from the sequence that
had it. So each block counts for one sequence, a sequence never holds a position outside its blocks, and what llama.cpp
holds of all sequences together always fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opensled.errors import EngineError
from verify_server.engine.base import Segment
from verify_server.trees import path_to, run_after, runs


@dataclass
class Held:
    """One sequence as it was last computed."""

    blocks: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)  # ids at positions 0, 1, ..., all within `blocks`
    kept: int = 0  # of which so many may be in the cache; the others never were
    tree: Segment | None = None  # the latest segment, if it had a tree: `tokens` go on along its first run


class Settled(NamedTuple):
    """What becomes of a tree of which a path stands."""

    sequence: int
    run: int  # number of the run in which the path ends
    start: int  # position where the path begins
    stop: int  # and where it ends


class Sequences:
    """All sequences of one engine, by number."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks, self._block_size = num_blocks, block_size
        self._owners: dict[int, int] = {}  # block -> the sequence in whose `blocks` it is
        self._held: dict[int, Held] = {}

    def claim(self, segment: Segment) -> dict[int, int]:
        """Gives a segment's blocks to its sequence; what each of the losers keeps, in tokens.

        Raises EngineError for blocks that cannot be right, and for a start beyond what is computed.
        """
        self._check_blocks(segment)
        number = segment.blocks[0]
        held = self._held.setdefault(number, Held())
        if segment.start > len(held.tokens):
            raise EngineError(
                f"sequence {number} goes on at position {segment.start}, but {len(held.tokens)} are computed"
            )
        del held.tokens[segment.start :]
        if segment.blocks == held.blocks:
            return {}
        self._release(number, 0)
        losers: dict[int, int] = {}
        for block in segment.blocks:
            losers.update(self.free(block))
        self._owners.update(dict.fromkeys(segment.blocks, number))
        held.blocks = segment.blocks
        return losers

    def free(self, block: int) -> dict[int, int]:
        """No sequence owns this block any more; returns which sequence loses tokens by it, like `claim`."""
        loser = self._owners.get(block)
        return {} if loser is None else {loser: self._lose(loser, block)}

    def before(self, segment: Segment) -> list[int]:
        """The ids of a claimed segment's sequence at positions [0, start)."""
        return self._held[segment.blocks[0]].tokens

    def kept(self, segment: Segment) -> int:
        """How many of these the cache holds, if it has lost none."""
        return min(segment.start, self._held[segment.blocks[0]].kept)

    def computed(self, segment: Segment) -> None:
        """The step of a claimed segment is done."""
        held = self._held[segment.blocks[0]]
        known = len(segment.tokens) - len(segment.parents)
        held.tokens.extend(segment.tokens[: known + len(run_after(segment.parents, -1))])
        held.kept, held.tree = len(held.tokens), segment if segment.parents else None

    def settle(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> Settled:
        """Another path than the first run stands of the tree that a sequence has just computed: see `TargetEngine`.

        What of the path is in the first run too is in the cache; of the rest, `found` tells.
        """
        held = self._held[blocks[0]]
        assert held.tree is not None, "nothing moves without a tree"
        start, parents = held.tree.tree_start, held.tree.parents
        path = path_to(parents, moves[-1][0] - start)
        ids = held.tree.tokens[-len(parents) :]
        held.tokens[start:] = [ids[index] for index in path]
        held.kept, held.tree = start + len(path) - len(moves), None
        run = [path[-1] in run for run in runs(parents)].index(True)
        return Settled(blocks[0], run, start, start + len(path))

    def found(self, settled: Settled) -> None:
        """The cache holds the whole path."""
        self._held[settled.sequence].kept = settled.stop

    def _check_blocks(self, segment: Segment) -> None:
        blocks, stop = segment.blocks, segment.start + len(segment.tokens)
        if len(set(blocks)) < len(blocks) or not 0 <= min(blocks) <= max(blocks) < self._num_blocks:
            raise EngineError(f"KV blocks {blocks} are not different numbers below {self._num_blocks}")
        if stop > len(blocks) * self._block_size:
            raise EngineError(
                f"{len(blocks)} KV blocks of {self._block_size} tokens do not cover {stop} positions"
            )

    def _lose(self, number: int, block: int) -> int:
        """Sequence `number` has given `block` back, so everything from there on; returns what it keeps, in tokens."""
        held = self._held[number]
        index = held.blocks.index(block)
        self._release(number, index)
        del held.tokens[index * self._block_size :]
        return len(held.tokens)

    def _release(self, number: int, index: int) -> None:
        """No sequence owns the blocks of sequence `number` from `index` on any more."""
        held = self._held[number]
        for block in held.blocks[index:]:
            del self._owners[block]
        held.blocks = held.blocks[:index]
