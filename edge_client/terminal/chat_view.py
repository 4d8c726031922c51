"""The view of a conversation: text as it comes, tokens coloured by origin, and notes in between."""

import logging
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from edge_client.link import remote
from edge_client.terminal.tail import line_width, tail_of
from opensled.cli.colour import Palette
from opensled.core.answer import UNVERIFIED, Chunk, Origin, Stats
from opensled.core.printable import digits, visible
from opensled.text.origins import ORIGINS

ROOM = 20  # columns that the right one of two columns needs; else it goes below the left one


@dataclass
class Answer:
    """One answer as it grows."""

    text: str = ""
    origins: list[Origin] = field(default_factory=list)
    stats: Stats | None = None  # once it is finished
    finish_reason: str = ""

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.origins += chunk.origins
        self.stats, self.finish_reason = chunk.stats, chunk.finish_reason or ""


class View:
    """Writes answers; with `chatty` (at a terminal) also the notes around them."""

    def __init__(self, palette: Palette, chatty: bool, out: TextIO | None = None) -> None:
        self.palette, self.chatty = palette, chatty
        self._out = out or sys.stdout
        self._at_line_start = True
        self._tail = tail_of(self._out, palette)

    def text(self, text: str, colour: str = "") -> None:
        """A piece of an answer."""
        if not text:
            return
        if self._out.isatty():
            text = visible(text.replace("\r\n", "\n"))
        self._write(text, colour)
        self._at_line_start = text.endswith("\n")

    def guess(self, guess: str, status: str) -> None:
        """What may follow, not verified yet, and what goes on instead of text; a pipe gets neither."""
        if self.chatty:
            self._out.write(self._tail.show(guess.replace("\r\n", "\n"), status))
            self._out.flush()

    def _write(self, text: str, colour: str = "") -> None:
        self._out.write(self._tail.put(text, colour))
        self._out.flush()

    def break_line(self) -> None:
        """Another program has written into this line."""
        self._at_line_start = False
        self._write("")

    def end_line(self) -> None:
        """The next text starts on a new line."""
        if not self._at_line_start:
            self._write("\n")
            self._at_line_start = True

    def note(self, text: str) -> None:
        """Dim lines that are no part of an answer; they do not go to a pipe."""
        if self.chatty:
            self.end_line()
            for line in text.splitlines():
                self._write(visible(line) + "\n", "dim")

    def warn(self, text: str, colour: str = "yellow") -> None:
        """A warning or an error: a line on standard error, also beside a pipe."""
        text = visible(text)
        if self.chatty:
            self.end_line()
            text = self.palette(wrap_text(text, line_width(sys.stderr)), colour)
        print(text, file=sys.stderr, flush=True)

    def pairs(self, rows: Mapping[str, str]) -> None:
        """Notes in two columns."""
        self.note("\n".join(in_columns(rows, line_width(self._out))))

    def legend(self, origins: Iterable[str]) -> None:
        """What the colour of each of these origins means."""
        rows = {f"{name} ({ORIGINS[name].colour or 'plain'})": name for name in origins}
        self.note("where the tokens come from:")
        left = max(map(len, rows))
        for shown, name in rows.items():
            colour, meaning = ORIGINS[name]
            for line in in_columns({shown.ljust(left): meaning}, line_width(self._out), indent=2):
                self._write(line + "\n", colour)

    def statistics(self, answer: Answer, seconds: float) -> None:
        """The dim line after an answer; `seconds` since its request, for an answer that was stopped."""
        tokens, rate, first = len(answer.origins), 0.0, ""
        if answer.stats:
            tokens, rate = answer.stats.completion_tokens, answer.stats.tokens_per_second
            first = f"the first after {digits(answer.stats.first_token)} s" if tokens else ""
        elif seconds:
            rate = tokens / seconds
        parts = [f"{tokens} token{'s' * (tokens != 1)}", f"{digits(rate)} tokens/s" if rate else "", first]
        alone = sum(origin in UNVERIFIED for origin in answer.origins)
        if alone:
            whose = "the draft model" if "local" in answer.origins else "the relay's model"
            parts.append(f"{'all of them' if alone == tokens else f'the last {alone}'} by {whose} alone")
        elif answer.stats and answer.stats.drafted:
            parts.append(f"{answer.stats.accepted} of {answer.stats.drafted} draft tokens accepted")
        if answer.stats and answer.stats.loose:
            parts.append(f"{answer.stats.loose} of them loose, by rule {answer.stats.rule}")
        if not answer.stats:
            parts = ["stopped", *parts, f"{answer.origins.count('accepted')} of them from drafts"]
        self.note(", ".join(filter(None, parts)))


def wrap_text(text: str, width: int) -> str:
    """`text` in lines of at most `width` columns; a longer word stays whole."""
    return textwrap.fill(text, max(1, width), break_long_words=False, break_on_hyphens=False)


def in_columns(rows: Mapping[str, str], width: int, indent: int = 0) -> list[str]:
    """Lines of at most `width` columns, with the keys of `rows` on the left and their texts on the right, or below."""
    left = indent + max(map(len, rows)) + 2
    below = width - left < ROOM
    lines: list[str] = []
    for key, text in rows.items():
        head = " " * indent + key
        margin = " " * (indent + 2 if below else left)
        body = wrap_text(text, width - len(margin)).splitlines()
        first = [head] if below else [f"{head:{left}}{body.pop(0)}"]
        lines += [*first, *(margin + line for line in body)]
    return lines


class Notes(logging.Handler):
    """Shows warnings of the device (such as a drafter that failed) between the lines of a conversation."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == remote.__name__:
            return  # a lost server: the view shows that itself
        cause = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        self._view.warn(f"{record.levelname.lower()}: {record.getMessage()}{cause}")
