"""Standard error as a stream of JSON objects alone: lines that do not come from our logging become objects.

Native libraries, child processes and `print` write there by themselves. While `capture`, they write into a pipe, and a
thread makes an object of each line. A line that is an object of ours already, such as a replica's, passes as it is.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opensled.process import logs

PIPE_BYTES = 1 << 20  # so that native code seldom waits for the thread; chosen
LAST_S = 0.5  # seconds for the last lines to pass at the end; chosen
LONGEST = 1 << 16  # bytes of a line in one object; chosen


@contextmanager
def capture() -> Iterator[None]:
    """While inside, standard error is JSON; logs must be configured as JSON. A crash of the process is told as ever."""
    own, kept, watched = os.dup(2), sys.stderr, faulthandler.is_enabled()
    reader, writer = os.pipe()
    _widen(writer)
    sys.stderr.flush()
    os.dup2(writer, 2)
    os.close(writer)
    with os.fdopen(own, "w", buffering=1, encoding="utf-8", errors="backslashreplace") as stream:
        logs.keep(stream)
        faulthandler.enable(stream)
        thread = threading.Thread(target=_pass_on, args=(reader, stream.fileno()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            kept.flush()
            os.dup2(stream.fileno(), 2)  # the pipe ends, unless a child process still holds it
            thread.join(LAST_S)
            faulthandler.disable()
            if watched:
                faulthandler.enable(2)
            logs.keep(None)


def _widen(pipe: int) -> None:
    # Linux alone has it, and limits what a user may hold
    with suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _pass_on(reader: int, own: int) -> None:
    """Until the last writer has closed the pipe."""
    with os.fdopen(reader, "rb") as lines:
        while line := lines.readline(LONGEST):
            if line.startswith(b'{"time": "') and line.endswith(b"}\n"):
                with suppress(OSError):  # its reader has gone; the writers go on
                    os.write(own, line)
            elif text := line.decode("utf-8", "replace").strip():
                logs.tell_foreign(text)
