"""KV of texts that are over, in host memory.

Attention of llama.cpp looks past every cell that is taken, also those of other texts: 65,000 of these would cost
SmolLM2 70 ms a token. So a text leaves the cells when its session ends, and is copied back when another begins with
it. That takes 13 ms for 2,161 tokens of SmolLM2 (50 MB); computing them takes seconds.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LONGEST = 512  # positions of one run: its memory is free only when all of its blocks are forgotten


@dataclass
class Run:
    """Consecutive blocks of a text."""

    first: int  # number of the first block in its text
    blocks: tuple[int, ...]
    data: np.ndarray  # uint8, as llama.cpp wrote it


class ParkedBlocks:
    """The runs by their blocks; each block is in one run at most."""

    def __init__(self, longest: int) -> None:
        """`longest`: blocks of one run; 0 = nothing is parked."""
        self._longest = longest
        self._runs: dict[int, Run] = {}

    def park(self, run: Run) -> None:
        for block in run.blocks:
            self._runs[block] = run

    def free(self, block: int) -> None:
        """Its content is not needed any more."""
        self._runs.pop(block, None)

    def missing(self, blocks: Sequence[int], wanted: Collection[int]) -> Iterator[tuple[int, int]]:
        """Ranges [first, stop) of a text's `blocks` that are `wanted` and not parked, each at most `longest`."""
        first = None
        for index in range(len(blocks) + 1 if self._longest else 0):
            inside = index < len(blocks) and blocks[index] in wanted and blocks[index] not in self._runs
            if first is not None and (not inside or index - first == self._longest):
                yield first, index
                first = None
            if inside and first is None:
                first = index

    def follow(self, blocks: Sequence[int], index: int) -> Iterator[tuple[Run, int]]:
        """What a text with these blocks can take from block `index` on: runs in order, and where each one ends."""
        while index < len(blocks) and (run := self._runs.get(blocks[index])) is not None:
            # A block of a run may be forgotten, and be another text's by now.
            while index < len(blocks) and self._runs.get(blocks[index]) is run:
                index += 1
            yield run, index
