"""What `opensled.process.fork_server` and its process say to each other: frames on sockets."""

from __future__ import annotations

import signal
import socket
import struct
from dataclasses import dataclass

LENGTH = struct.Struct("<Q")  # before the content of a frame, in bytes
TICKET = struct.Struct("<Q")  # tells which fork to begin, with its two sockets, or to end, without
STATUS = struct.Struct("<h")  # how a fork ended: its exit status or, negative, the signal, as in `subprocess`
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


def send(pipe: socket.socket, content: bytes) -> None:
    """Write a whole frame; raises BrokenPipeError or ConnectionResetError if the other end is closed."""
    pipe.sendall(LENGTH.pack(len(content)) + content)


def receive(pipe: socket.socket) -> bytes | None:
    """The content of the next frame; None at the end."""
    header = receive_exactly(pipe, LENGTH.size)
    return None if header is None else receive_exactly(pipe, *LENGTH.unpack(header))


def receive_exactly(pipe: socket.socket, size: int) -> bytes | None:
    """The next bytes; None if fewer are left."""
    parts = []
    while size:
        try:
            part = pipe.recv(min(size, 1 << 20))
        except ConnectionResetError:  # it ended before it had read all that was sent
            part = b""
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
