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
    REFUSED = 7  # instead of any frame of the server; its body is one byte, of `_REFUSALS`


class Withdrawn(Unauthorized):
    """The code does not count any more."""


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

# The body of a refusal: what the device is told, and of which error of the server; the last counts for all others
_REFUSALS: dict[int, tuple[type[OpenSledError], str]] = {
    2: (Withdrawn, "the code does not count any more; run opensled pair on the server again"),
    1: (Unauthorized, WRONG_CODE),
    3: (Overloaded, "too many connections of this address to the pairing port; try again"),
    4: (ProtocolError, "the server did not understand this device; bring both to one release"),
}


def encode_refusal(error: BaseException) -> bytes:
    """The frame that tells the other end of an error."""
    known = (number for number, (kind, _) in _REFUSALS.items() if isinstance(error, kind))
    return encode_frame(PairFrame.REFUSED, bytes((next(known, max(_REFUSALS)),)))


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
    is_of_server = kind in (PairFrame.ANSWER, PairFrame.GRANT, PairFrame.DONE)
    if is_of_server and head[0] == PairFrame.REFUSED and length == 1:
        reason = (await reader.readexactly(1))[0]
        error, message = _REFUSALS.get(reason, _REFUSALS[max(_REFUSALS)])
        raise error(message)
    if head[0] != kind or length > MOST[kind]:
        raise ProtocolError("the other end sent an invalid pairing message")
    return await reader.readexactly(length)
