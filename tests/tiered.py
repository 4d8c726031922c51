"""A second tier of KV memory for tests: a fake engine with host memory, and copies that end when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hw_profiles.swap_cost import SwapCost
from tests.fakes import FakeEngine
from verify_server.kv.copies import Done
from verify_server.kv.host_tier import HostMemory

BLOCK_BYTES = 64


@dataclass
class TieredEngine(FakeEngine):
    """Copies at the very end of a copy's time, so that whoever takes blocks too early finds the wrong content."""

    host: dict[int, int] = field(default_factory=dict)

    def reserve_host(self, num_blocks: int) -> int:
        return BLOCK_BYTES

    def swap_out(self, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]:
        return lambda: self._copy(self.slots, blocks, self.host, host)

    def swap_in(self, host: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        return lambda: self._copy(self.host, host, self.slots, blocks)

    def _copy(self, source: dict[int, int], sources, target: dict[int, int], targets) -> None:
        size = self.block_size
        for one, two in zip(sources, targets, strict=True):
            for offset in range(size):
                target.pop(two * size + offset, None)
                if one * size + offset in source:
                    target[two * size + offset] = source[one * size + offset]


class HeldCopies:
    """A `Copier` whose copies end by hand."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], None], Done]] = []

    def start(self, work: Callable[[], None], done: Done) -> None:
        self.waiting.append((work, done))

    def end(self, error: Exception | None = None) -> None:
        """The oldest one."""
        work, done = self.waiting.pop(0)
        if error is None:
            try:
                work()
            except Exception as raised:
                error = raised
        done(error, 1e-6)

    def close(self) -> None: ...


def host_memory(num_blocks: int, bytes_s: float = 1e12) -> HostMemory:
    """Of which copies cost next to nothing, unless `bytes_s` says so."""
    return HostMemory(num_blocks, SwapCost(BLOCK_BYTES, bytes_s), SwapCost(BLOCK_BYTES, bytes_s))
