"""Handlers for tests of `opensled.process.fork_server`: each question is Python that gives the answer."""

import os


def python(setup: bytes):
    """Questions are expressions; `setup` is run before."""
    names: dict = {"os": os, "parent": os.getpid()}
    exec(setup, names)
    return lambda question: str(eval(question, names)).encode()
