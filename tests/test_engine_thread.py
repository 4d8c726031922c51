"""The engine's thread: one call after the other, and what becomes of answers that nobody waits for."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from opensled.process.load_thread import in_thread_that_ends
from tests.loops import cancelled
from verify_server.round.engine_thread import EngineThread


@pytest.fixture
def thread():
    made = EngineThread()
    yield made
    made.close()


async def test_calls_run_in_one_thread_beside_the_loop(thread):
    [one] = {await thread.run(threading.current_thread) for _ in range(3)}
    assert one is not threading.main_thread() and one.name == "engine"


async def test_an_error_reaches_who_waits_and_the_next_call_runs(thread):
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    assert await thread.run(divmod, 7, 2) == (3, 1)


async def test_whoever_is_cancelled_does_not_wait_and_what_has_not_begun_never_runs(thread):
    go, ran = threading.Event(), []
    first = asyncio.ensure_future(thread.run(go.wait))
    second = asyncio.ensure_future(thread.run(ran.append, 2))
    await asyncio.sleep(0)
    await cancelled(first, second)
    go.set()
    await thread.run(ran.append, 3)
    assert ran == [3]


def test_an_answer_to_a_loop_that_is_closed_is_dropped(thread):
    go = threading.Event()

    async def leave():
        waiting = asyncio.ensure_future(thread.run(go.wait))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    go.set()
    assert asyncio.run(thread.run(len, "next")) == 4


async def test_close_waits_for_what_has_begun():
    thread, begun, go, ended = EngineThread(), threading.Event(), threading.Event(), []

    def work():
        begun.set()
        go.wait()
        ended.append(1)

    waiting = asyncio.ensure_future(thread.run(work))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    threading.Timer(0.05, go.set).start()
    thread.close()
    assert ended == [1]


# -- the thread in which an engine loads --------------------------------------------------------------------------


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
def test_a_load_leaves_no_team_of_threads_behind(engine):
    words = [sys.executable, "-c", LOADS_TWICE, engine, "tiny"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    one, two = map(int, ran.stdout.split())
    assert one == two


def test_what_a_load_raises_reaches_its_caller():
    def load() -> None:
        raise KeyError("no such model")

    with pytest.raises(KeyError, match="no such model"):
        in_thread_that_ends(load)
