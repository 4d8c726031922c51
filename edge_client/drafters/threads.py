"""How many threads a draft model may use without hurting the device.

One thread too many is far worse than one too few: on a busy 2-core machine a second llama.cpp thread made a
token 5 to 70 times slower, because every thread waits for the one that was descheduled.
"""

from __future__ import annotations

from hw_profiles.cores import usable_cores


def draft_threads(wanted: int) -> int:
    """`wanted` if positive, else one less than the physical cores this process may use, at least 1."""
    return wanted if wanted > 0 else max(1, usable_cores() - 1)
