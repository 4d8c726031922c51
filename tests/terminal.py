"""A command in a real terminal (a pty), driven as a person would: wait for a text, type, read the screen."""

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Screen:
    """One `opensled` command; use it in a `with`: the process never outlives it."""

    def __init__(self, *arguments, columns=100, **variables):
        self.output, self._seen = "", 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        environment = {**os.environ, "TERM": "xterm-256color", "OPENSLED_NO_CONFIG": "1", **variables}
        environment.pop("NO_COLOR", None) if "NO_COLOR" not in variables else None
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(ROOT)
            # As a terminal would: a shell starts what runs in its background with Ctrl-C ignored, these tests included.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execve(sys.executable, [sys.executable, "-m", "opensled", *arguments], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))

    def expect(self, text, seconds=60.0):
        """Wait for `text` after all that was expected before; returns what came up to its end."""
        deadline, start = time.monotonic() + seconds, self._seen
        while (found := self.output.find(text, start)) < 0:
            assert time.monotonic() < deadline and self._read(1.0), f"no {text!r} in:\n{self.output}"
        self._seen = found + len(text)
        return self.output[start : self._seen]

    def type(self, text):
        os.write(self._terminal, text.encode("utf-8", "surrogateescape"))

    def finish(self):
        """The exit code, once the process has ended by itself."""
        deadline = time.monotonic() + 60.0
        while self._read(1.0):
            assert time.monotonic() < deadline, f"no end of:\n{self.output}"
        self._pid, pid = 0, self._pid
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @property
    def text(self):
        """All output without colours and control sequences."""
        return CODES.sub("", self.output).replace("\r", "")

    def _read(self, seconds):
        """Take in what is there; False at the end."""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return True
        try:
            chunk = os.read(self._terminal, 1 << 16)
        except OSError:  # Linux says EIO where the other end is closed
            return False
        self.output += self._decode(chunk)
        return bool(chunk)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._terminal)
