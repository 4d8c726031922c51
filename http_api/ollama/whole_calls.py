"""Whole tool calls, as Ollama's API sends them, from the pieces of an answer."""

import secrets
from typing import Any

from http_api.call_arguments import Balance
from http_api.calls import AnswerPiece, CallReader, parse_json

Call = dict[str, Any]


class WholeCalls:
    """Joins the pieces of each call; without a reader everything is text."""

    def __init__(self, reader: CallReader | None) -> None:
        self._reader = reader
        self._count = 0  # of calls
        self._name = ""  # of the call now read, "" = none
        self._arguments: list[str] = []  # of it
        self._object = Balance()

    def push(self, text: str, ends: bool) -> list[str | Call]:
        """The texts and calls that these further characters complete; `ends`: they are the last ones."""
        if self._reader is None:
            return [text] if text else []
        pieces = self._reader.push(text) + (self._reader.flush() if ends else [])
        found = [whole for piece in pieces if (whole := self._take(piece))]
        return found + ([self._take_partial()] if ends and self._name else [])

    def _take(self, piece: AnswerPiece) -> str | Call | None:
        """What the piece completes; None: nothing yet."""
        if piece.kind == "text":
            return piece.text
        if piece.kind == "name":
            self._name, self._arguments, self._object = piece.text, [], Balance()
            return None
        self._arguments.append(piece.text)
        return None if self._object.end(piece.text) is None else self._complete()

    def _complete(self) -> str | Call:
        """The call; a text if its arguments are no JSON, for a draft model alone keeps to no grammar."""
        arguments = parse_json("".join(self._arguments))
        if arguments is None:
            return self._take_partial() + "}"
        function = {"index": self._count, "name": self._name, "arguments": arguments}
        self._name, self._count = "", self._count + 1
        return {"id": f"call_{secrets.token_hex(12)}", "function": function}

    def _take_partial(self) -> str:
        """The call as text, as far as the answer has it."""
        name, self._name = self._name, ""
        return f'{{"name": "{name}", "arguments": {"".join(self._arguments)}'
