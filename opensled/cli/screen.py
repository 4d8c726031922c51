"""A terminal that a command draws on and reads keys from; restored when the command ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from typing import Any, NoReturn

ENTER = "\x1b[?1049h\x1b[?25l"  # another screen, without a cursor
LEAVE = "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
KEYS = 64  # bytes read at once
END = "\x04"  # Ctrl-D


class Screen:
    """Use it in a `with`. If standard input is a terminal too, keys arrive at once and are not shown."""

    def __init__(self) -> None:
        self._input = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []
        self._on_end: Any = None

    def __enter__(self) -> Screen:
        self._on_end = signal.signal(signal.SIGTERM, _end)
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        _write(ENTER)
        return self

    def __exit__(self, *exception: object) -> None:
        _write(LEAVE)
        if self._input is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
        signal.signal(signal.SIGTERM, self._on_end)

    def draw(self, lines: Sequence[str], height: int) -> None:
        """Replace the content; lines beyond `height` are left out."""
        _write(HOME + "\r\n".join(line + REST_OF_LINE for line in lines[:height]) + REST_OF_SCREEN)

    def keys(self, seconds: float) -> str:
        """The pressed key, after at most this many seconds; "" = none."""
        if self._input is None:
            time.sleep(seconds)
            return ""
        if not select.select([self._input], [], [], seconds)[0]:
            return ""
        read = os.read(self._input, KEYS)
        return read.decode("utf-8", "replace") or END  # the terminal is gone


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
