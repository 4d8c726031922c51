"""Shaping: how sizes and times of frames hide what they carry. What both ends agree on, and the sizes. No I/O.

A frame is one message on the wire. With shaping its size is one of a few, whatever it carries, and with a tick it
leaves at a multiple of the tick only; a dummy leaves where there is nothing to send. docs/protocol.md has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opensled.errors import InvalidRequest, UsageError

SHAPING = "shaping"  # the capability of a server that serves `Open.shaping`

# Bytes. Chosen: a block of 16 tokens and its verdict fit twice, a draft tree of 60 tokens of a 150k vocabulary once.
FRAME_BYTES = 256
# Bytes of the smallest Open and Opened. Chosen: most questions of a chat and their token ids fit.
OPENING_BYTES = 1024
# Frames of the shortest answer with `pad_answer`; others have a power of two times as many. Chosen: most short answers
# look alike, at the price of 1.3 s with a tick of 20 ms.
LEAST_FRAMES = 64

MIN_FRAME, MAX_FRAME = 64, 4096  # bytes
# Milliseconds. Chosen: a shorter tick costs a server more than a percent of a core for each stream; a longer one makes
# answers slower than people read.
MIN_TICK, MAX_TICK = 10, 200


@dataclass(frozen=True)
class Shaping:
    """What holds for the frames of one sequence, in both directions."""

    frame_bytes: int  # size of a message, times a power of two
    tick_ms: int = 0  # between two frames of one end; 0 = frames leave at once
    pad_answer: bool = False  # frames go on after the answer until their number is a power of two

    def __post_init__(self) -> None:
        _check(MIN_FRAME <= self.frame_bytes <= MAX_FRAME, f"frame_bytes is from {MIN_FRAME} to {MAX_FRAME}")
        ticks = self.tick_ms == 0 or MIN_TICK <= self.tick_ms <= MAX_TICK
        _check(ticks, f"tick_ms is 0, or from {MIN_TICK} to {MAX_TICK}")
        _check(self.tick_ms > 0 or not self.pad_answer, "pad_answer needs a tick")

    def with_least(self, least: Shaping | None) -> Shaping:
        """The stricter of both in everything."""
        if least is None:
            return self
        return Shaping(
            max(self.frame_bytes, least.frame_bytes),
            max(self.tick_ms, least.tick_ms),
            self.pad_answer or least.pad_answer,
        )

    def meets(self, asked: Shaping) -> bool:
        """Whether it hides all that `asked` would hide."""
        return self == self.with_least(asked)


def _check(ok: bool, rule: str) -> None:
    if not ok:
        raise InvalidRequest(f"shaping: {rule}", "shaping")


def tick_length(tick: int) -> None:
    """Raises UsageError for a --tick that no server takes."""
    if 0 < tick < MIN_TICK:
        raise UsageError(f"a tick has at least {MIN_TICK} milliseconds")


# The rules of an option --tick.
TICK_RULES: dict[str, Any] = {"low": 0, "high": MAX_TICK, "metavar": "MS", "check": tick_length}


def configured(pad_frames: bool, tick: int, pad_answer: bool) -> Shaping | None:
    """The shaping that the flags of these names ask for; None = none. Raises UsageError."""
    if tick and not pad_frames:
        raise UsageError(
            "--tick needs --pad-frames: without it the size of a frame says which ones are dummies"
        )
    if pad_answer and not tick:
        raise UsageError("--pad-answer needs --tick: without it no frames leave after the answer")
    return Shaping(FRAME_BYTES, tick, pad_answer) if pad_frames else None


def agreed(asked: Shaping | None, least: Shaping | None) -> Shaping | None:
    """What holds on a stream whose `Open` asks for `asked`, at a server that requires `least`.

    Raises InvalidRequest.
    """
    if asked is None and least is not None:
        raise InvalidRequest("this server requires padded frames; the device must ask for them", "shaping")
    return asked and asked.with_least(least)


def padded_size(size: int, least: int) -> int:
    """The size of a frame of `size` bytes: the first of `least` times 1, 2, 4, ... that padding can bring it to."""
    padded = least
    while padded != size and padded < size + 2:  # the smallest padding is a tag and a length
        padded *= 2
    return padded


def padding_parts(gap: int) -> list[bytes]:
    """Zeros for the repeated field `padding` that take exactly `gap` bytes on the wire; `gap` is not 1."""
    if not gap:
        return []
    for head in range(2, 6):  # a tag of one byte, and a length of up to four
        if 1 + _varint_bytes(gap - head) == head:
            return [bytes(gap - head)]
    return [b"", *padding_parts(gap - 2)]  # no part is as long: its length would take one byte more


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def is_whole(frames: int) -> bool:
    """Whether an answer with `pad_answer` may end after so many frames."""
    return frames >= LEAST_FRAMES and frames & (frames - 1) == 0
