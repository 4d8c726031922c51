"""Engines load in a thread that ends: libgomp keeps the team of each thread that computes as long as that thread."""

import subprocess
import sys
from pathlib import Path

import pytest

from opensled.process.load_thread import in_thread_that_ends

# The threads of a process after a load with one thread, and after one with two. The fewest of a second count: a thread
# that has ended takes a moment to leave the kernel's list.
LOADS_TWICE = """
import os, sys, time
from verify_server.options.serve_config import ServeConfig
from verify_server.options.registries import ENGINES

def loaded(threads):
    engine, model = sys.argv[1:]
    ENGINES.get(engine)(ServeConfig(model=model, engine=engine, threads=threads, kv_tokens=9000))
    fewest, until = len(os.listdir("/proc/self/task")), time.monotonic() + 1
    while time.monotonic() < until:
        fewest = min(fewest, len(os.listdir("/proc/self/task")))
        time.sleep(0.01)
    return fewest

print(loaded(1), loaded(2))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize("engine", [pytest.param("torch", marks=pytest.mark.long), "llamacpp"])
def test_a_load_leaves_no_team_of_threads_behind(engine: str) -> None:
    words = [sys.executable, "-c", LOADS_TWICE, engine, "tiny"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    one, two = map(int, ran.stdout.split())
    assert one == two


def test_what_a_load_raises_reaches_its_caller() -> None:
    def load() -> None:
        raise KeyError("no such model")

    with pytest.raises(KeyError, match="no such model"):
        in_thread_that_ends(load)
