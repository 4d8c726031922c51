"""The frames of a pairing over TCP: a byte for the kind, two for the length, then the body; each within its limits."""

from __future__ import annotations

import asyncio
from enum import IntEnum

from home.pairing.channel import ANSWER_BYTES, HELLO_BYTES, PROOF_BYTES, WRONG_CODE
from opensled.core.errors import OpenSledError, Overloaded, ProtocolError, Unauthorized, Unreachable

STEP_SECONDS = 10.0  # for which one end waits for the next frame of the other; chosen
SEAL_BYTES = 16  # by which a sealed message is longer


class PairFrame(IntEnum):
    """What the frames are, in the order in which they come."""

    HELLO = 1
    ANSWER = 2
    REQUEST = 3
    GRANT = 4
    STORED = 5
    DONE = 6
    REFUSED = 7  # instead of any frame of the server; its body is one byte, a `Refusal`


class Refusal(IntEnum):
    """Why the server ends a run."""

    WRONG_CODE = 1
    WITHDRAWN = 2
    BUSY = 3
    FAULT = 4


# Most bytes of a body
MOST = {
    PairFrame.HELLO: HELLO_BYTES,
    PairFrame.ANSWER: ANSWER_BYTES,
    PairFrame.REQUEST: PROOF_BYTES + 1024,
    PairFrame.GRANT: PROOF_BYTES + 8192,
    PairFrame.STORED: SEAL_BYTES + 16,
    PairFrame.DONE: SEAL_BYTES + 16,
    PairFrame.REFUSED: 1,
}
STORED, DONE = b"stored", b"done"

_REFUSED: dict[int, tuple[type[OpenSledError], str]] = {
    Refusal.WRONG_CODE: (Unauthorized, WRONG_CODE),
    Refusal.WITHDRAWN: (
        Unauthorized,
        "the code does not count any more; run opensled pair on the server again",
    ),
    Refusal.BUSY: (Overloaded, "too many connections of this address to the pairing port; try again"),
    Refusal.FAULT: (ProtocolError, "the server did not understand this device; bring both to one release"),
}


def refusal_of(error: BaseException) -> Refusal:
    """What the other end is told of an error."""
    if isinstance(error, Unauthorized):
        return Refusal.WRONG_CODE
    return Refusal.BUSY if isinstance(error, Overloaded) else Refusal.FAULT


def encode_frame(kind: PairFrame, body: bytes) -> bytes:
    assert len(body) <= MOST[kind]
    return bytes((kind,)) + len(body).to_bytes(2, "big") + body


async def read_frame(reader: asyncio.StreamReader, kind: PairFrame, seconds: float = STEP_SECONDS) -> bytes:
    """The body of the next frame, which is one of `kind`.

    Raises ProtocolError for another one, what a refusal says, and Unreachable when the other end leaves or is silent.
    """
    try:
        return await asyncio.wait_for(_read(reader, kind), seconds)
    except (asyncio.TimeoutError, TimeoutError):
        raise Unreachable(f"the other end of the pairing said nothing for {seconds:g} s") from None
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Unreachable("the other end of the pairing has gone") from error


async def _read(reader: asyncio.StreamReader, kind: PairFrame) -> bytes:
    """The length is looked at before the body is waited for."""
    head = await reader.readexactly(3)
    length = int.from_bytes(head[1:], "big")
    if (
        head[0] == PairFrame.REFUSED
        and kind in (PairFrame.ANSWER, PairFrame.GRANT, PairFrame.DONE)
        and length == 1
    ):
        reason = (await reader.readexactly(1))[0]
        kind_of_error, message = _REFUSED.get(reason, _REFUSED[Refusal.FAULT])
        raise kind_of_error(message)
    if head[0] != kind or length > MOST[kind]:
        raise ProtocolError("the other end sent an invalid pairing message")
    return await reader.readexactly(length)
