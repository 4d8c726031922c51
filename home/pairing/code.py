"""The code that a person carries from the server's screen to the device: eight digits in two groups.

Digits, because every keyboard has them and every language reads them aloud.
"""

import secrets

from opensled.core.errors import UsageError

DIGITS = 8


def new_code() -> str:
    """A fresh code, as it is shown: "4821-0937"."""
    digits = f"{secrets.randbelow(10**DIGITS):0{DIGITS}}"
    return f"{digits[: DIGITS // 2]}-{digits[DIGITS // 2 :]}"


def read_code(typed: str) -> str:
    """The digits of a code as a person types it, with dashes, dots and spaces or without; raises UsageError."""
    digits = "".join(sign for sign in typed if sign not in "-. ")
    if len(digits) != DIGITS or not (digits.isascii() and digits.isdigit()):
        raise UsageError(
            f"{typed[:40]!r} is not a pairing code; a code has {DIGITS} digits, such as 4821-0937"
        )
    return digits
