"""What a conversation looks like: text as it comes, tokens coloured by who wrote them, and notes in between."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from edge_client import remote
from edge_client.answer import Chunk, Origin, Stats
from edge_client.terminal.colour import Palette, visible
from edge_client.terminal.tail import tail_of, waiting_for
from edge_client.tokenizer import EdgeTokenizer, TextStream

COLOURS: dict[Origin, str] = {
    "accepted": "green",
    "recovered": "yellow",
    "bonus": "cyan",
    "server": "magenta",
}
LOCAL = "blue"  # words of the draft model alone
LEGEND: dict[Origin, str] = {
    "accepted": "accepted draft",
    "recovered": "recovered",
    "bonus": "bonus",
    "server": "decoded by the server",
}


class Painter:
    """Text by origin: the pieces of one answer, each with the origin of the token it came from."""

    def __init__(self, tokenizer: EdgeTokenizer) -> None:
        self._tokenizer, self._stream = tokenizer, TextStream(tokenizer)
        self._waiting: list[Origin] = []  # of the tokens whose text is not settled yet

    def push(self, ids: Sequence[int], origins: Sequence[Origin]) -> list[tuple[str, Origin]]:
        """The pieces that these tokens settle."""
        pieces: list[tuple[str, Origin]] = []
        for token, origin in zip(ids, origins):
            if token in self._tokenizer.special_ids:
                continue  # it has no text
            self._waiting.append(origin)
            texts = self._stream.push_each(token)
            if texts:
                pieces += zip(texts, self._waiting)
                self._waiting = []
        return pieces

    def flush(self) -> list[tuple[str, Origin]]:
        """The rest, when nothing follows."""
        return [(text, self._waiting[-1])] if (text := self._stream.flush()) else []


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
    """Writes answers; with `chatty` (a person at a terminal) also everything around them."""

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
        self._write(self.palette(text, colour))
        self._at_line_start = text.endswith("\n")

    def guess(self, guess: str, waiting: float) -> None:
        """What may follow, not verified yet, and for how many seconds the server is away; a pipe gets neither."""
        if self.chatty:
            self._out.write(self._tail.show(guess.replace("\r\n", "\n"), waiting_for(waiting)))
            self._out.flush()

    def _write(self, text: str) -> None:
        self._out.write(self._tail.clear() + text)
        self._tail.follow(text)
        self._out.flush()

    def break_line(self) -> None:
        """Somebody else has written into this line."""
        self._at_line_start = False
        self._write("")

    def end_line(self) -> None:
        """What follows starts on a line of its own."""
        if not self._at_line_start:
            self._write("\n")
            self._at_line_start = True

    def note(self, text: str) -> None:
        """A dim line that is no part of an answer; a pipe does not get it."""
        if self.chatty:
            self.end_line()
            self._write("".join(f"{self.palette(visible(line), 'dim')}\n" for line in text.splitlines()))

    def warn(self, text: str, colour: str = "yellow") -> None:
        """Something went wrong: a line on standard error, also beside a pipe."""
        if self.chatty:
            self.end_line()
            text = self.palette(visible(text), colour)
        print(text, file=sys.stderr, flush=True)

    def legend(self) -> None:
        """Which colour means what."""
        self._write("  ".join(self.palette(LEGEND[origin], COLOURS[origin]) for origin in COLOURS) + "\n")

    def account(self, answer: Answer, seconds: float) -> None:
        """The dim line after an answer; `seconds` since its request."""
        tokens = len(answer.origins)
        if answer.stats:
            tokens, seconds = answer.stats.completion_tokens, answer.stats.seconds
        parts = [
            f"{tokens} token{'s' * (tokens != 1)}",
            f"{tokens / seconds:.1f} tokens/s" if seconds else "",
        ]
        if answer.origins and set(answer.origins) == {"local"}:
            parts.append("all of them the draft model's own")
        elif "local" in answer.origins:
            parts.append(f"the last {answer.origins.count('local')} the draft model's own")
        elif answer.stats and answer.stats.drafted:
            parts.append(f"{answer.stats.accepted} of {answer.stats.drafted} drafted accepted")
        elif not answer.stats:
            parts = ["stopped", *parts, f"{answer.origins.count('accepted')} accepted"]
        self.note(", ".join(filter(None, parts)))


class Notes(logging.Handler):
    """Puts warnings of the device (the server is lost, the drafter failed) between the lines of a conversation."""

    def __init__(self, view: View) -> None:
        super().__init__(logging.WARNING)
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == remote.__name__:
            return  # a lost server: the view itself says so, for as long as it is lost
        cause = f" ({record.exc_info[1]})" if record.exc_info and record.exc_info[1] else ""
        self._view.warn(f"{record.levelname.lower()}: {record.getMessage()}{cause}")
