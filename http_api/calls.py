"""Finds tool calls in an answer's text while it grows.

A model writes a call as an object {"name": ..., "arguments": {...}}: between tags if its chat template has them, else
as the whole answer (verify_server/text/tool_grammar.py). The name goes out as soon as it is complete, the arguments in
pieces as the model writes them. Text that is no call stays text.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from opensled.core.protocol import overlap
from opensled.text.answer_text import CALL_TAGS

OPENING = CALL_TAGS[0]


class AnswerPiece(NamedTuple):
    """Text outside of calls, the name of a call that begins, or a piece of the JSON text of its arguments."""

    kind: Literal["text", "name", "arguments"]
    text: str


class CallReader:
    """Tells calls of the tools in `names` from text."""

    def __init__(self, names: Sequence[str]) -> None:
        self._heads = {f'{{"name":"{name}","arguments":{{': name for name in names}
        self._held = ""  # text that is not decided yet
        self._read: Callable[[], list[AnswerPiece] | None] = self._beginning
        self._margin = ""  # blanks before the first tag; no text if a call follows
        self._before = ""  # the tag before the object now read; "" if there is none
        self._object = Balance()  # the arguments now read

    def push(self, text: str) -> list[AnswerPiece]:
        """The pieces that these further characters decide."""
        self._held += text
        pieces: list[AnswerPiece] = []
        while self._held and (found := self._read()) is not None:
            pieces += found
        return pieces

    def flush(self) -> list[AnswerPiece]:
        """The rest at the end of the answer; a call that ends before its arguments is text."""
        text, self._held = self._held, ""
        if self._read in (self._arguments, self._after) or not self._before + text:
            return []
        return [AnswerPiece("text", self._before + text)]

    def _beginning(self) -> list[AnswerPiece] | None:
        """At the start of the answer, where an object without a tag may be a call too."""
        start = self._held.lstrip()
        if not start or (OPENING.startswith(start) and start != OPENING):
            return None
        if start.startswith("{"):
            self._read = self._head
        else:
            self._read = self._text
            if start.startswith(OPENING):
                self._margin, self._held = self._held[: -len(start)], start
        return []

    def _text(self) -> list[AnswerPiece] | None:
        """Text up to the next opening tag; a tail that may begin one is held back."""
        text, tag, rest = self._held.partition(OPENING)
        if tag:
            self._open(rest)
            return [AnswerPiece("text", text)] if text else []
        keep = overlap(text, OPENING)
        self._held = text[len(text) - keep :]
        shown = text[: len(text) - keep]
        return [AnswerPiece("text", shown)] if shown else None

    def _head(self) -> list[AnswerPiece] | None:
        """The object up to the brace that opens its arguments."""
        squeezed = re.sub(r"\s", "", self._held)
        for head, name in self._heads.items():
            if squeezed.startswith(head):
                self._held = self._held[_length(self._held, len(head)) - 1 :]
                self._object, self._before, self._read = Balance(), "", self._arguments
                return [AnswerPiece("name", name)]
        if any(head.startswith(squeezed) for head in self._heads):
            return None
        text = self._before + self._held
        self._held, self._before, self._read = "", "", self._text
        return [AnswerPiece("text", text)]

    def _arguments(self) -> list[AnswerPiece] | None:
        """Their object, as far as it is known."""
        end = self._object.end(self._held)
        text = self._held[:end]
        self._held = self._held[len(text) :]
        if end is not None:
            self._read = self._after
        return [AnswerPiece("arguments", text)]

    def _after(self) -> list[AnswerPiece] | None:
        """Behind the arguments: the end of the object and its tag, and perhaps another call."""
        _, tag, rest = self._held.partition(OPENING)
        if not tag:
            self._held = self._held[len(self._held) - overlap(self._held, OPENING) :]
            return None
        self._open(rest)
        return []

    def _open(self, rest: str) -> None:
        self._before, self._margin = self._margin + OPENING, ""
        self._held, self._read = rest, self._head


class Balance:
    """Follows a JSON object from its opening brace, which comes first, to the brace that closes it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def end(self, text: str) -> int | None:
        """How many of these further characters belong to the object; None: all of them, and it goes on."""
        for index, character in enumerate(text):
            self._step(character)
            if not self._depth:
                return index + 1
        return None

    def _step(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._in_string:
            self._escaped = character == "\\"
            self._in_string = character != '"'
        elif character == '"':
            self._in_string = True
        else:
            self._depth += {"{": 1, "}": -1}.get(character, 0)


def parse_json(text: str) -> Any:
    """The value of a whole JSON text; None if it is cut off or no JSON (as one of a draft model alone may be)."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def _length(text: str, count: int) -> int:
    """How long the head of `text` is that holds `count` characters besides white space."""
    seen = 0
    for index, character in enumerate(text):
        seen += not character.isspace()
        if seen == count:
            return index + 1
    return len(text)
