"""Steps of the wall clock of some processes, as of an operator or of NTP, while CLOCK_MONOTONIC goes on; see time(7).

The step is made in Python's `time.time`, which is where the product reads the wall clock. libfaketime 0.9.10 steps it
for libraries as well, but disturbs more than a step of the clock does: `time.sleep` failed, and a server that wrote
137 tokens/s wrote 3. A real step leaves waits that begin after it alone.
"""

import os
from pathlib import Path

FILE = "SOAK_CLOCK"  # environment variable: the file that says by how much the clock is off
BYTES = 8  # of the file: signed seconds, little-endian
_PRELOADED = Path(__file__).parent / "preloaded"


class StepClock:
    """A wall clock that can be stepped, for all Python processes that are started with its `environment`."""

    def __init__(self, file: Path) -> None:
        """`file`: to be made; it must outlive the processes."""
        file.write_bytes(bytes(BYTES))
        self._file = file

    def step(self, seconds: int) -> None:
        """From now on the clock is off by so much."""
        with self._file.open("r+b") as file:  # in place: the processes have mapped it
            file.write(seconds.to_bytes(BYTES, "little", signed=True))

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(_PRELOADED), os.environ.get("PYTHONPATH", "")]
        return {FILE: str(self._file), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
