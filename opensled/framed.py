"""A message with the size that its frame is to have; sizes are in shaping.py."""

from typing import NamedTuple

from opensled.messages import ClientMessage, ServerMessage


class Framed(NamedTuple):
    """A message to be sent with padding."""

    message: ClientMessage | ServerMessage
    least: int  # bytes of its frame, or a power of two times as many
