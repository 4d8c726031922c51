"""What `opensled.process.fork_server` and its process say to each other: frames on two pipes."""

from __future__ import annotations

import os
import signal
import struct
from dataclasses import dataclass

HEADER = "<QBQ"  # ticket, kind, length of the content in bytes
HEADER_BYTES = struct.calcsize(HEADER)
SETUP = 0  # the ticket of the setup; questions count from 1
QUESTION, CANCEL = 0, 1  # kinds of frames to the process
# Kinds of frames from it: the setup is done; an answer; a failure; the limit of processor time or memory was passed;
# the process has ended, by no limit of ours.
READY, ANSWER, FAILED, TIME, MEMORY, GONE = 2, 3, 4, 5, 6, 7
NO_MEMORY = 3  # exit status after a MemoryError of Python
# How native code ends when an allocation fails, or a stack overflows.
CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP, signal.SIGFPE)


@dataclass(frozen=True)
class ForkLimits:
    """What one question may take. On systems other than Linux only the time is enforced."""

    seconds: float  # of processor time
    memory: int  # bytes beyond what the process has taken when the question comes
    limits_setup: bool = False  # the setup comes from a stranger: the same limits for it
    # How many questions one fork answers, one after the other: more than one where they can leave nothing behind. A
    # fork takes some milliseconds, which a first token would wait for.
    questions: int = 1


@dataclass(frozen=True)
class Frame:
    """What came through a pipe."""

    ticket: int
    kind: int
    content: bytes


def whole_frame(data: bytearray) -> Frame | None:
    """The frame that these bytes are; None if some are missing."""
    if len(data) < HEADER_BYTES:
        return None
    ticket, kind, length = struct.unpack_from(HEADER, data)
    return Frame(ticket, kind, bytes(data[HEADER_BYTES:])) if len(data) - HEADER_BYTES == length else None


def read_frame(pipe: int) -> Frame | None:
    """The next frame of a pipe; None at its end."""
    header = _read(pipe, HEADER_BYTES)
    if header is None:
        return None
    ticket, kind, length = struct.unpack(HEADER, header)
    content = _read(pipe, length)
    return None if content is None else Frame(ticket, kind, content)


def _read(pipe: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def write_frame(pipe: int, ticket: int, kind: int, content: bytes = b"") -> None:
    """Write a whole frame; raises BrokenPipeError if the other end is closed."""
    write_all(pipe, struct.pack(HEADER, ticket, kind, len(content)))
    write_all(pipe, content)


def write_all(pipe: int, content: bytes) -> None:
    """Write all bytes, also to a pipe that takes a few at a time."""
    left = memoryview(content)
    while left:
        left = left[os.write(pipe, left) :]


def exit_kind(status: int) -> int:
    """What the exit status of a process means; negative: the signal that ended it, as in `subprocess`."""
    if status < 0:
        return TIME if -status == signal.SIGPROF else MEMORY if -status in CRASHES else GONE
    return {0: ANSWER, NO_MEMORY: MEMORY}.get(status, FAILED)
