"""Loads and tests an engine where it leaves no OpenMP threads behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread_that_ends(work: Callable[[], T]) -> T:
    """`work()`, in a thread of its own that has ended when this returns. Raises what `work` raises.

    libgomp gives each thread that computes a team of its own, which stays as long as that thread. As soon as all teams
    together have more threads than the process has cores, none of them waits actively between two operations any more
    (libgomp/config/linux/wait.h, `gomp_throttled_spin_count_var`). Weights that the main thread has tested therefore
    make the engine's thread slow: measured with SmolLM2-135M, bfloat16, two cores, 57 ms a step instead of 32.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    # A daemon, so that Ctrl-C ends a start at once.
    thread = threading.Thread(target=run, name="load", daemon=True)
    thread.start()
    thread.join()
    return outcome.result()
