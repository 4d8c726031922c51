"""The fuzz targets on what is known: their seeds, what fuzzing once found, and a little noise. Needs no fuzzer."""

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

FOUND = Path(__file__).parent / "fuzz" / "found"
NOISE = 40  # inputs


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_errors_of_ours_comes_out(name):
    target, rng = TARGETS[name], random.Random(name)
    noise = [_noisy(rng.choice(target.seeds), rng) for _ in range(NOISE)]
    for data in (b"", *target.seeds, *noise):
        target.run(data)


def _noisy(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(1 + rng.randrange(3)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize(
    "path", sorted(FOUND.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_what_fuzzing_once_found_stays_mended(path):
    TARGETS[path.parent.name].run(path.read_bytes())
