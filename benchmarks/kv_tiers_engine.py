"""`opensled serve --engine benchmarks.kv_tiers_engine:load`: the torch engine, whose copies of KV to host memory and
back take as long as on a bus of so many bytes a second (BYTES_S in the environment); the bytes do move.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from verify_server.config import ServeConfig
from verify_server.engine.torch_engine import TorchEngine
from verify_server.target import Target, load_torch

BYTES_S = "KV_TIERS_BYTES_S"  # environment variable


class SlowCopies(TorchEngine):
    """A `TorchEngine` on a slow bus."""

    block_bytes = 0

    def reserve_host(self, num_blocks: int) -> int:
        self.block_bytes = super().reserve_host(num_blocks)
        return self.block_bytes

    def swap_out(self, blocks: Sequence[int], host: Sequence[int]) -> Callable[[], None]:
        return self._slowed(super().swap_out(blocks, host), len(blocks))

    def swap_in(self, host: Sequence[int], blocks: Sequence[int]) -> Callable[[], None]:
        return self._slowed(super().swap_in(host, blocks), len(blocks))

    def _slowed(self, copy: Callable[[], None], blocks: int) -> Callable[[], None]:
        seconds = blocks * self.block_bytes / float(os.environ[BYTES_S])

        def slow() -> None:
            until = time.monotonic() + seconds
            copy()
            time.sleep(max(0.0, until - time.monotonic()))

        return slow


def load(config: ServeConfig) -> Target:
    """Any target that engine torch loads."""
    target = load_torch(config)
    engine = target.engine
    assert isinstance(engine, TorchEngine)
    return replace(target, engine=SlowCopies(engine._model, engine.info))
