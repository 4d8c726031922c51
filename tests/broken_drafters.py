"""Drafters that fail in ways only a process of their own survives: for `--drafter tests.broken_drafters:Name`."""

import os
import signal
import threading


class Illegal:
    """A library built for another processor."""

    def __init__(self, model: str, threads: int) -> None:
        os.kill(os.getpid(), signal.SIGILL)


class Killed:
    """More memory than there is."""

    def __init__(self, model: str, threads: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Endless:
    """A model on a card that does not answer."""

    def __init__(self, model: str, threads: int) -> None:
        threading.Event().wait()


class Buggy:
    def __init__(self, model: str, threads: int) -> None:
        raise RuntimeError("libgomp.so.1: cannot open shared object file")
