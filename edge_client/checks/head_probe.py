"""Times a draft head of the target in a process of its own: native code that crashes or hangs must not end the doctor.

`python -m edge_client.checks.head_probe FOLDER THREADS` prints a JSON object a line: what it loaded, and how long a
block takes behind 256 rows of numbers that stand for hidden states.
"""

import statistics
import sys
import time
from pathlib import Path

import numpy as np

from edge_client.checks.own_process import tell
from edge_client.drafters.base import Drafter
from edge_client.drafters.head import HeadFactory
from opensled.drafting.head_form import PARTS, WINDOW
from opensled.errors import OpenSledError
from opensled.features import FeatureRows
from opensled.messages import SamplingParams
from opensled.noise import noise_key
from opensled.sampling import Sampler

REPEATS, SECONDS = 15, 2.0  # blocks to time, and how long at most
ROWS = 3  # that come with a verdict: two tokens stand, and one more


def main(folder: str, threads: str) -> int:
    """Load it and time it."""
    try:
        started = time.monotonic()
        factory = HeadFactory(folder, int(threads))
        tell("loaded", name=factory.name, seconds=time.monotonic() - started)
        tell("block", seconds=statistics.median(block_times(factory, known_id(Path(folder)))))
    except OpenSledError as error:
        tell("error", code=error.code, reason=str(error))
    return 0


def known_id(folder: Path) -> int:
    """A token id that the head can draft behind."""
    with np.load(folder / PARTS, allow_pickle=False) as parts:
        return int(parts["ids"][0])


def block_times(factory: HeadFactory, known_id: int) -> list[float]:
    """Seconds from the rows of a verdict to a block behind them, some times; `known_id`: in the head's vocabulary."""
    head = factory.create()
    _begin(head, known_id)
    head.features(_rows(factory, 0))
    list(head.propose())  # the first pass makes what later ones use again
    newest = _rows(factory, WINDOW - ROWS)
    times, end = list[float](), time.monotonic() + SECONDS
    while len(times) < REPEATS and (not times or time.monotonic() < end):
        began = time.monotonic()
        head.features(newest)
        list(head.propose())
        times.append(time.monotonic() - began)
    return times


def _rows(factory: HeadFactory, first: int) -> FeatureRows:
    """Of the positions from `first` to the newest."""
    about, count = factory.about, WINDOW - first
    data = np.random.default_rng(0).integers(-127, 128, (count, len(about.taps), about.size), np.int8)
    return FeatureRows(first, about.size, (0.02,) * (count * len(about.taps)), data.tobytes(), about.taps)


def _begin(head: Drafter, token: int) -> None:
    """A text whose newest token is in the head's vocabulary."""
    head.begin([token] * (WINDOW + 1), Sampler(SamplingParams(temperature=0), noise_key(0)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
