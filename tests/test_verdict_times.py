"""How long a device was at work on a block: from the verdict before to the block."""

from __future__ import annotations

import pytest

from edge_client.lengths.observed import OPEN_BLOCKS, VerdictTimes


def test_the_time_until_a_block_is_counted_from_the_verdict_before():
    times = VerdictTimes()
    times.came(10, 5.0)
    assert times.until(10, 4.9, 0.1) == 0, "that verdict was on another answer"
    assert times.until(10, 5.2, 0.1) == 0.1, "each verdict has one next block"
    times.came(10, 5.0)
    assert times.until(10, 50.0, 0.1) == 0.1, "of another answer"
    for base in range(OPEN_BLOCKS + 1):
        times.came(base, 1.0)
    assert times.until(0, 1.3, 0.1) == 0.1 and times.until(1, 1.3, 0.1) == pytest.approx(0.3)
