"""Texts of others on a terminal of ours: what would control it is shown as an escape, such as \\x1b.

A peer chooses its answers, error messages and names. Written as they are, control characters could move the cursor,
hide text, change the clipboard or the window's title, and characters that reverse the writing direction could make a
command look like another one ("Trojan Source", CVE-2021-42574).
"""

import re

# C0 and C1 controls but tab and newline; overrides, embeddings and isolates of writing direction; lone surrogates.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """`text` with characters that control a terminal as escapes; tabs and newlines stay."""
    return _CONTROLS.sub(_escape, text)


def visible_line(text: str) -> str:
    """Like `visible`, in one line: a newline could begin a line that looks like one of ours."""
    return visible(" ".join(text.split("\n")))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def digits(value: float, count: int = 2) -> str:
    """A rate or a ratio for people with `count` digits that count, such as 0.91, 4.9, 35 and 1,234 for two."""
    if not value:
        return "0"
    for places in range(count):
        if abs(value) >= 10 ** (count - 1 - places) - 0.05 * 10**-places:
            return f"{value:,.{places}f}"
    return f"{value:.{count}f}"
