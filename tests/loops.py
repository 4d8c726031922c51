"""Coroutines for callers without an event loop (a test that is one needs no decorator), and ends of tasks."""

import asyncio
import functools
import time


def in_loop(asked):
    """The coroutine function as a plain one, each call in an event loop of its own."""

    @functools.wraps(asked)
    def run(*words, **fields):
        return asyncio.run(asked(*words, **fields))

    return run


async def cancelled(*tasks):
    """Wait for the ends of tasks that are cancelled; returns what they return or raise."""
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks, return_exceptions=True)


def block_until(condition, seconds=30.0, else_told="nothing happened"):
    """The first value of `condition()` that is not false; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, else_told
        time.sleep(0.02)
    return found
