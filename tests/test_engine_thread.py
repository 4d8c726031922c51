"""The engine's thread: one call after the other, and what becomes of answers that nobody waits for."""

import asyncio
import threading

import pytest

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
    first.cancel()
    second.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
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
