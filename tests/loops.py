"""Helpers that are coroutines, for callers without an event loop; a test that is one needs no decorator."""

import asyncio
import functools


def in_loop(asked):
    """The coroutine function as a plain one, each call in an event loop of its own."""

    @functools.wraps(asked)
    def run(*words, **fields):
        return asyncio.run(asked(*words, **fields))

    return run
