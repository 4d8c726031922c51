"""Loads and tests a model where that leaves no OpenMP threads behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_thread_that_ends(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(...)`, in a thread of its own that has ended when this returns. Raises what `work` raises.

    libgomp gives each thread that computes a team of its own, which stays as long as that thread. As soon as all teams
    together have more threads than the process has cores, none of them waits actively between two operations any more
    (libgomp/config/linux/wait.h, `gomp_throttled_spin_count_var`). So a model that one thread has tested is slow in the
    thread that uses it: measured with SmolLM2-135M on two cores, 31 ms a token instead of 11 in llama.cpp, and 57 ms
    instead of 32 in torch, bfloat16.
    """
    thread, outcome = _start(partial(work, *args, **kwargs))
    thread.join()
    return outcome.result()


async def run_work(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`in_thread_that_ends`, while the event loop goes on. Where it is cancelled, the thread is left alone."""
    thread, outcome = _start(partial(work, *args, **kwargs))
    result = await asyncio.wrap_future(outcome)
    thread.join()
    return result


def _start(work: Callable[[], T]) -> tuple[threading.Thread, Future[T]]:
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # nobody cancels it: its thread would set a result in vain

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    # A daemon, so that Ctrl-C ends a start at once.
    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    return thread, outcome
