"""Steps of the clock by libfaketime: a file says how far the wall clock of some processes is off; see time(7).

Real clock steps leave CLOCK_MONOTONIC alone, and so do these. libfaketime 0.9.10 (Debian 12) breaks absolute sleeps on
that clock, which Python's time.sleep uses: `preloaded/sitecustomize.py` makes it sleep in another way.
"""

from __future__ import annotations

import os
from pathlib import Path

PLACES = (
    "/usr/lib/*/faketime/libfaketimeMT.so.1",  # Debian: apt-get install faketime
    "/usr/lib*/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
)
SEEN_S = 1.0  # after which a step is seen everywhere
_PRELOADED = Path(__file__).parent / "preloaded"


def library() -> str:
    """Path of libfaketime for programs with threads; "" where it is missing."""
    root = Path("/")
    return next((str(path) for place in PLACES for path in root.glob(place[1:])), "")


class StepClock:
    """A wall clock that can be stepped, for all processes that are started with its `environment`."""

    def __init__(self, file: Path) -> None:
        """`file`: to be made; it must outlive the processes."""
        self._file = file
        self.step(0)

    def step(self, seconds: int) -> None:
        """From now on the clock is off by so much."""
        unfinished = self._file.with_suffix(".new")
        unfinished.write_text(f"{seconds:+d}\n")
        unfinished.replace(self._file)  # a reader sees one or the other

    @property
    def environment(self) -> dict[str, str]:
        """{} where libfaketime is missing."""
        found = library()
        if not found:
            return {}
        paths = [str(_PRELOADED), os.environ.get("PYTHONPATH", "")]
        return {
            "LD_PRELOAD": found,
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(int(SEEN_S)),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DISABLE_SHM": "1",  # else every process that is killed leaves files in /dev/shm
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }
