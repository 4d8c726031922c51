"""Power of a Raspberry Pi 5: its PMIC measures each rail's current and voltage, and the firmware tells them.

The firmware is asked over /dev/vcio, as `vcgencmd pmic_read_adc` does it; that takes the group `video`, and no binary.
What the board passes on at 5 V (USB, HATs) is not among the rails. No other board answers.
"""

import os
import re
import struct
from collections.abc import Callable

COMMAND = b"pmic_read_adc"
MAILBOX = "/dev/vcio"
TAG = 0x00030080  # of a property message: run a firmware command, and hand its text back
TEXT = 1024  # bytes of the text
HEAD = 24  # bytes before it: length, request code, tag, size of the text, its request code, error
PROPERTY = 0xC0000000 | (struct.calcsize("P") << 16) | (100 << 8)  # the ioctl: _IOWR(100, 0, char *)
_RAIL = re.compile(r"^\s*(\S+)_([AV]) (?:current|volt)\(\d+\)=([\d.]+)[AV]\s*$", re.MULTILINE)


def pmic_power_w() -> float | None:
    """Watts over all rails now; None on every other board, and for users who may not ask."""
    try:
        return rail_power(ask(_through_mailbox))
    except (OSError, ImportError, ValueError):
        return None


def ask(exchange: Callable[[bytearray], None]) -> str:
    """The firmware's text; `exchange` hands it a property message and gets it back in place.

    Raises ValueError when the firmware knows no such command, and what `exchange` raises.
    """
    message = bytearray(HEAD + TEXT + 4)  # at its end the tag that ends all messages, 0
    struct.pack_into("<6I", message, 0, len(message), 0, TAG, TEXT, 0, 0)
    message[HEAD : HEAD + len(COMMAND)] = COMMAND
    exchange(message)
    (error,) = struct.unpack_from("<I", message, HEAD - 4)
    if error:
        raise ValueError(f"the firmware answers with error {error}")
    return bytes(message[HEAD:]).split(b"\0", 1)[0].decode("ascii", "replace")


def rail_power(text: str) -> float | None:
    """The sum of volts times amperes over the rails that tell both; None if none does."""
    rails: dict[str, dict[str, float]] = {}
    for name, unit, value in _RAIL.findall(text):
        rails.setdefault(name, {})[unit] = float(value)
    watts = [rail["A"] * rail["V"] for rail in rails.values() if rail.keys() == {"A", "V"}]
    return sum(watts) if watts else None


def _through_mailbox(message: bytearray) -> None:
    import fcntl  # not everywhere

    mailbox = os.open(MAILBOX, os.O_RDWR)
    try:
        fcntl.ioctl(mailbox, PROPERTY, message, True)
    finally:
        os.close(mailbox)
