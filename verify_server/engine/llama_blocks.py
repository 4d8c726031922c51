"""What the KV blocks of a GGUF target hold, as token ids: the truth that any cell of llama.cpp can be computed from."""

from collections.abc import Sequence
from typing import NamedTuple

from opensled.errors import EngineError
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
        if (computed := self._computed(segment)) < segment.start:
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

    def _computed(self, segment: Segment) -> int:
        """Positions before the segment that its blocks hold."""
        needed = -(-segment.start // self._block_size)
        for index, block in enumerate(segment.blocks[:needed]):
            content = self._contents.get(block)
            count = len(content.ids) if content is not None and content.position == index else 0
            if count < min(self._block_size, segment.start - index * self._block_size):
                return index * self._block_size + count
        return segment.start
