"""Which llama.cpp sequence holds which session's KV: pure bookkeeping, no llama.cpp in it.

The server keeps KV by blocks (verify_server/kv/blocks.py), llama.cpp by (sequence id, position), and cells may be of
several sequences. A session has one sequence; it is known by the block before the position where it goes on, and by
the block of that position, which no other session has. A session that begins with blocks of others gets a sequence
that takes over their cells. Sequences of sessions that are over stay for those who find their blocks, until the blocks
are given back or the ids run short: then the sequence that was used least recently goes.

What the blocks hold is remembered as token ids (`BlockContents`), so that any sequence may lose any cell: it is
computed again.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opensled.core.errors import EngineError
from opensled.core.trees import path_to, run_after, runs
from verify_server.engine.base import Segment


class Content(NamedTuple):
    """What is written in a block."""

    position: int  # of the block in its text, in blocks
    ids: list[int]


class BlockContents:
    """Of all blocks of one engine."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks, self._block_size = num_blocks, block_size
        self._contents: dict[int, Content] = {}

    def check(self, segment: Segment) -> None:
        """Raises EngineError for blocks that cannot be right, and for a start beyond what they hold."""
        blocks, stop = segment.blocks, segment.start + len(segment.tokens)
        if len(set(blocks)) < len(blocks) or not 0 <= min(blocks) <= max(blocks) < self._num_blocks:
            raise EngineError(f"KV blocks {blocks} are not different numbers below {self._num_blocks}")
        if stop > len(blocks) * self._block_size:
            raise EngineError(
                f"{len(blocks)} KV blocks of {self._block_size} tokens do not cover {stop} positions"
            )
        if (computed := self._count_computed(segment)) < segment.start:
            raise EngineError(
                f"a sequence goes on at position {segment.start}, but {computed} are computed in its KV blocks"
            )

    def text(self, segment: Segment) -> list[int]:
        """The ids before a segment that was checked."""
        needed = -(-segment.start // self._block_size)
        ids = [id for block in segment.blocks[:needed] for id in self._contents[block].ids]
        return ids[: segment.start]

    def write(self, blocks: Sequence[int], start: int, ids: Sequence[int]) -> None:
        """From position `start` on these blocks hold `ids`, and nothing beyond."""
        size, first = self._block_size, start // self._block_size
        if start % size:
            ids = (*self._contents[blocks[first]].ids[: start % size], *ids)
        for index in range(first, len(blocks)):
            own = list(ids[(index - first) * size : (index - first + 1) * size])
            self._contents[blocks[index]] = Content(index, own)

    def free(self, block: int) -> None:
        """Its content is lost."""
        self._contents.pop(block, None)

    def _count_computed(self, segment: Segment) -> int:
        """Positions before the segment that its blocks hold."""
        needed = -(-segment.start // self._block_size)
        for index, block in enumerate(segment.blocks[:needed]):
            content = self._contents.get(block)
            count = len(content.ids) if content is not None and content.position == index else 0
            if count < min(self._block_size, segment.start - index * self._block_size):
                return index * self._block_size + count
        return segment.start


@dataclass
class Held:
    """One sequence as it was last computed."""

    blocks: tuple[int, ...] = ()
    tokens: list[int] = field(default_factory=list)  # ids at positions 0, 1, ..., all within `blocks`
    kept: int = 0  # of which so many may be in the cache; the others never were


class Claim(NamedTuple):
    """The sequence of a segment, and what must happen to the cache, in this order."""

    sequence: int
    losers: dict[int, int]  # sequences that lose tokens, and how many each of them keeps
    source: int  # the sequence whose first cells become those of `sequence` as well; itself = no other's do
    shared: int  # so many of them


class Settled(NamedTuple):
    """What becomes of a tree of which a path stands."""

    sequence: int | None  # None = it has been let go of
    run: int  # number of the run in which the path ends
    start: int  # position where the path begins
    stop: int  # and where it ends


class LlamaSequences:
    """All sequences of one engine, by number."""

    def __init__(self, num_blocks: int, block_size: int, most: int) -> None:
        """`most` sequences at a time."""
        self._block_size = block_size
        self._contents = BlockContents(num_blocks, block_size)
        self._holders: dict[int, set[int]] = {}  # block -> the sequences in whose `blocks` it is
        self._held: OrderedDict[int, Held] = OrderedDict()  # least recently used first
        self._spare = list(range(most - 1, -1, -1))
        # The latest segments with a tree, by their last block: what is written goes on along the first run
        self._trees: dict[int, Segment] = {}

    def has_room(self, busy: Collection[int]) -> bool:
        """Whether one more segment finds a sequence beside those that are `busy` in this pass."""
        return bool(self._spare) or len(self._held) > len(busy)

    def claim(self, segment: Segment, busy: Collection[int]) -> Claim:
        """Gives a segment a sequence that is not `busy`, and its blocks to that.

        Raises EngineError for blocks that cannot be right, and for a start beyond what is computed.
        """
        self._contents.check(segment)
        written = segment.start // self._block_size  # the blocks from here on are no one else's
        number, source, shared = self._own(segment, busy), None, 0
        losers: dict[int, int] = {}
        if number is None:
            source, shared = self._source(segment)
            number, losers = self._take(busy, source)
            if number == source:  # there was no other: what it held is computed again
                source, shared = None, 0
            self._held[number] = Held(tokens=self._contents.text(segment), kept=shared)
        held = self._held[number]
        self._held.move_to_end(number)
        del held.tokens[segment.start :]
        if segment.blocks != held.blocks:
            for block in segment.blocks[written:]:
                losers |= self._lose(block, self._holders.get(block, set()) - {number})
            self._hold(number, segment.blocks)
        self._write(segment.blocks, segment.start, ())
        return Claim(number, losers, number if source is None else source, shared)

    def free(self, block: int) -> dict[int, int]:
        """A block's content is lost; returns which sequences lose tokens by it, and how many each keeps."""
        self._contents.free(block)
        self._trees.pop(block, None)
        return self._lose(block, set(self._holders.get(block, ())))

    def drop(self, number: int) -> None:
        """The cache has nothing of this sequence any more; what its blocks hold is still known."""
        self._hold(number, ())
        del self._held[number]
        self._spare.append(number)

    def idle(self, busy: Collection[int]) -> list[int]:
        """The sequences that are not `busy`, least recently used first."""
        return [number for number in self._held if number not in busy]

    def before(self, number: int) -> list[int]:
        """The ids of a claimed sequence before its segment."""
        return self._held[number].tokens

    def count_kept(self, number: int) -> int:
        """How many of these the cache holds, if it has lost none."""
        held = self._held[number]
        return min(len(held.tokens), held.kept)

    def add_computed(self, number: int, segment: Segment) -> None:
        """The step of a claimed segment is done."""
        known = len(segment.tokens) - len(segment.parents)
        ids = segment.tokens[: known + len(run_after(segment.parents, -1))]
        held = self._held[number]
        held.tokens.extend(ids)
        held.kept = len(held.tokens)
        self._write(segment.blocks, segment.start, ids)
        if segment.parents:
            self._trees[segment.blocks[-1]] = segment

    def settle(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> Settled:
        """Another path than the first run stands of the tree that a session has just computed: see `TargetEngine`.

        What of the path is in the first run too is in the cache; of the rest, `found` tells.
        """
        tree = self._trees.pop(blocks[-1])
        start, parents = tree.tree_start, tree.parents
        path = path_to(parents, moves[-1][0] - start)
        ids = [tree.tokens[-len(parents) :][index] for index in path]
        self._write(blocks, start, ids)
        number = next(
            iter(self._holders.get(blocks[-1], ())), None
        )  # a tree's blocks are of one session only
        if number is not None:
            held = self._held[number]
            held.tokens[start:] = ids
            held.kept = start + len(path) - len(moves)
        run = [path[-1] in run for run in runs(parents)].index(True)
        return Settled(number, run, start, start + len(path))

    def over(self, blocks: Collection[int], busy: Collection[int]) -> list[int]:
        """The sequences that end with one of these blocks, which no session has any more, and are not `busy`."""
        return [
            number
            for number, held in self._held.items()
            if number not in busy and held.blocks and held.blocks[-1] in blocks
        ]

    def blocks_of(self, number: int) -> tuple[int, ...]:
        """The leading blocks of a sequence that the cache has whole."""
        return self._held[number].blocks[: self.count_kept(number) // self._block_size]

    def keep_path(self, settled: Settled) -> None:
        """The cache holds the whole path."""
        assert settled.sequence is not None
        self._held[settled.sequence].kept = settled.stop

    # -- finding a sequence -------------------------------------------------------------------------------

    def _own(self, segment: Segment, busy: Collection[int]) -> int | None:
        """The sequence that a segment goes on with; None = it needs a new one."""
        if not segment.start:
            return None
        count = (segment.start - 1) // self._block_size + 1
        for number in self._holders.get(segment.blocks[count - 1], ()):
            held = self._held[number]
            if number in busy or held.blocks[:count] != segment.blocks[:count]:
                continue
            # A full block may be of several sessions; what follows it is of one.
            inside, following = segment.start % self._block_size, held.blocks[count : count + 1]
            if inside or not following or following == segment.blocks[count : count + 1]:
                return number
        return None

    def _source(self, segment: Segment) -> tuple[int | None, int]:
        """The sequence with the most cells of the text before a segment, in whole blocks, and how many; None = none."""
        text, size = self._contents.text(segment), self._block_size
        for count in range(segment.start // size, 0, -1):
            for number in self._holders.get(segment.blocks[count - 1], ()):
                held, length = self._held[number], count * size
                # Another block may hold the same tokens.
                if held.kept >= length and held.tokens[:length] == text[:length]:
                    return number, length
        return None, 0

    def _take(self, busy: Collection[int], source: int | None) -> tuple[int, dict[int, int]]:
        """A sequence that holds nothing, `source` only if there is no other, and those that lose all for it."""
        if self._spare:
            return self._spare.pop(), {}
        oldest = min(self.idle(busy), key=lambda number: number == source)
        self.drop(oldest)
        return self._spare.pop(), {oldest: 0}

    def _write(self, blocks: Sequence[int], start: int, ids: Sequence[int]) -> None:
        """From position `start` on these blocks hold `ids`, and nothing beyond; no tree is there any more."""
        self._contents.write(blocks, start, ids)
        for block in blocks[start // self._block_size :]:
            self._trees.pop(block, None)

    def _hold(self, number: int, blocks: tuple[int, ...]) -> None:
        """These are the blocks of a sequence now."""
        held = self._held[number]
        same = len(blocks) if blocks[: len(held.blocks)] == held.blocks else 0
        start = len(held.blocks) if same else 0
        if not same:
            for block in held.blocks:
                self._leave(block, number)
        for block in blocks[start:]:
            self._holders.setdefault(block, set()).add(number)
        held.blocks = blocks

    def _leave(self, block: int, number: int) -> None:
        holders = self._holders[block]
        holders.discard(number)
        if not holders:
            del self._holders[block]

    def _lose(self, block: int, losers: Collection[int]) -> dict[int, int]:
        """These sequences have lost `block`, so everything from there on; what each of them keeps, in tokens."""
        kept = {}
        for number in losers:
            held = self._held[number]
            index = held.blocks.index(block)
            for lost in held.blocks[index:]:
                self._leave(lost, number)
            held.blocks = held.blocks[:index]
            del held.tokens[index * self._block_size :]
            kept[number] = len(held.tokens)
            if not held.blocks:
                self.drop(number)
        return kept
