"""What one client may send and hold: all numbers in one place. verify_server/access/clients.py counts against them.

| what | limit | of | beyond it |
|---|---|---|---|
| bytes of a message | `message_bytes` | every message | gRPC refuses it before it is read whole |
| streams at the same time | `streams` | a connection | HTTP/2 lets them wait at the client |
| streams without an answer to their `Open` | `max_opening` | tenant, connection, address | `overloaded` |
| streams, finished or refused ones included | places + `opening` | tenant | `overloaded` |
| seconds until the first message | `first_s` | a stream | the stream ends |
| seconds for the end of a stream to be read | `farewell_s` | a stream | the stream ends |
| seconds without reading | `SessionLimits.linger` | a stream | its reader counts as absent |
| streams that will not read their end | `stuck` | a connection | the connection is closed |
| calls | `calls` | tenant, connection, address | the next ones wait their turn |
| bytes of large messages | `bytes` | tenant, connection, address | they wait before they are parsed |
| processor time to parse and tokenize what arrives | `reading` | tenant, connection, address | the next calls wait |
| messages that gain nothing | `idle_messages` | tenant, connection, address | they wait before the next one is read |
| calls without access, and calls cancelled at once | `refusals` | connection, address | the connection is closed |

A server without tokens and certificates knows no tenants: connection and address stand for them. One message alone is
always admitted, however large a rate its cost exceeds; the next one pays for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from opensled.core.images import MAX_PROMPT_IMAGE_BYTES

MAX_VARINT = 7  # payload bits of a byte of a protobuf integer
FIXED_BYTES = 256 << 10  # of a message: a schema of MAX_SCHEMA characters, biases, stop ids and names
MAX_BYTES = 64 << 20  # of a message, however long the context: gRPC counts in 32 bits
TEXT_BYTES = 16  # of a message for each position: hardly any text has more bytes per token


class Rate(NamedTuple):
    """So much per second, and so much at once."""

    per_second: float
    burst: float


MAX_OPENING = 128  # streams without an answer to their `Open`
MIN_OPENING = 64  # of them, however large messages may be: one device begins that many at once
BURST = 4  # seconds of a rate, at once: all devices of an office come back after a pause
CALLS = Rate(40, 40 * BURST)
BYTES = Rate(2 << 20, 4 << 20)
READING = Rate(0.08, 0.5)  # seconds of processor time
# Chosen: 64 devices of one office on a slow link, of whose drafts 2 a second come late.
IDLE_MESSAGES = Rate(128, 128 * BURST)
REFUSALS = Rate(20, 200)


def message_bytes(context_length: int, vocab_size: int, images: bool = False) -> int:
    """Most bytes of a message: a text that fills the context, as many ids, all pictures of a prompt if the target
    takes `images`, and all else of an `Open`.

    A power of two: a padded `Open` grows to one.
    """
    id_bytes = -(-max(1, vocab_size - 1).bit_length() // MAX_VARINT)
    files = MAX_PROMPT_IMAGE_BYTES if images else 0
    size = min(FIXED_BYTES + context_length * (TEXT_BYTES + id_bytes) + files, MAX_BYTES)
    return 1 << (size - 1).bit_length()


@dataclass(frozen=True)
class ClientLimits:
    """See the table above. All chosen: above what 64 devices on one connection send; drafts in turn cost nothing."""

    message_bytes: int = 4 << 20
    streams: int = 256 + MAX_OPENING
    opening: int = MAX_OPENING
    opening_bytes: int = 64 << 20  # in which that many largest messages must fit
    first_s: float = 10.0
    farewell_s: float = 5.0
    stuck: int = 8
    calls: Rate = CALLS
    bytes: Rate = BYTES
    reading: Rate = READING
    idle_messages: Rate = IDLE_MESSAGES
    refusals: Rate = REFUSALS
    small_bytes: int = 16 << 10  # a message up to so many bytes is free: the largest draft of honest devices
    by_address: bool = True  # else all clients come through one proxy
    by_connection: bool = True  # else gateways of this cluster, which count their clients themselves

    @property
    def from_gateways(self) -> ClientLimits:
        """Where one connection carries the streams of all clients of a gateway."""
        return replace(self, by_connection=False)

    @property
    def max_opening(self) -> int:
        """Streams that may wait for their `Open` or its answer."""
        return min(self.opening, max(MIN_OPENING, self.opening_bytes // self.message_bytes))
