"""Finds tool calls in an answer's text while it grows.

A model writes a call in the form of its template (opensled/text/call_forms.py). The name goes out as soon as it is
complete, the arguments in pieces as the model writes them. Text that is no call stays text. Where calls are JSON
without a mark, and the answer may be JSON of a schema as well, only what is a call of a tool and nothing else is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from http_api.call_arguments import Balance, Literals, Tags
from opensled.core.messages import CallForm, Guide, Tool
from opensled.core.protocol import overlap
from opensled.text.call_forms import BARE, CALLING, exact, leads, match, opening

FENCES = ("```json", "<tools>")  # around calls of models that do not keep to their mark, as Qwen2.5-Coder


class AnswerPiece(NamedTuple):
    """Text outside of calls, the name of a call that begins, or a piece of the JSON text of its arguments."""

    kind: Literal["text", "name", "arguments"]
    text: str


def reader_of(guide: Guide | None, form: CallForm | None) -> CallReader | None:
    """What reads the calls of an answer; None: what looks like a call is text."""
    if form is None or guide is None or not guide.tools or guide.tool_choice not in CALLING:
        return None
    return CallReader(guide.tools, form, bool(guide.json_schema) and guide.tool_choice == "auto")


class CallReader:
    """Tells calls of `tools`, which a model writes in this form, from text."""

    def __init__(self, tools: Sequence[Tool], form: CallForm, beside: bool = False) -> None:
        """`beside`: the text may be JSON of another schema, so that an object is a call only as a whole."""
        self._tools = {tool.name: tool for tool in tools}
        self._mark = opening(form)
        self._beside = beside and not self._mark and form.arguments == "json"
        if self._beside:  # then blanks are where JSON has them
            form = CallForm(*[re.sub(r"␣?([{}:,])␣?", r"␣\1␣", text) for text in form])
        self._form = form
        begun = leads(form)
        self._marks = tuple(filter(None, begun))
        self._heads = {
            head: name for lead in begun.values() for head, name in self._spell(lead, form).items()
        }
        self._held = ""  # text that is not decided yet
        self._read: Callable[[], list[AnswerPiece] | None] = self._beginning
        self._margin = ""  # blanks before the first mark; no text if a call follows
        self._values: Balance | Tags | Literals = Balance()  # the arguments now read

    def push(self, text: str) -> list[AnswerPiece]:
        """The pieces that these further characters decide."""
        self._held += text
        pieces: list[AnswerPiece] = []
        while self._held and (found := self._read()) is not None:
            pieces += found
        return pieces

    def flush(self) -> list[AnswerPiece]:
        """The rest at the end of the answer; a call that ends before its arguments is text."""
        text, self._held = self._margin + self._held, ""
        if self._read == self._whole:
            return self._decide(text)
        if self._read == self._after:  # another call may have begun
            text = text[text.index(self._mark) :] if self._mark and self._mark in text else ""
        is_call = self._read in (self._arguments, self._behind)
        return [] if is_call or not text else [AnswerPiece("text", text)]

    def _spell(self, lead: str, form: CallForm) -> dict[str, str]:
        """What begins the arguments of a call behind `lead`: the tool that it calls."""
        brace = "{" if form.arguments == "json" else ""
        return {lead + exact(name, form) + form.middle + brace: name for name in self._tools}

    def _beginning(self) -> list[AnswerPiece] | None:
        """At the start of the answer, where calls without a mark may begin; some models forget it."""
        start = self._held.lstrip()
        for fence in FENCES:
            start = start.removeprefix(fence).lstrip()
        if any(mark.startswith(start) and start != mark for mark in (*self._marks, *FENCES)):
            return None
        self._read = self._head
        if start.startswith("{") and self._form.arguments == "json":
            self._heads |= self._spell(BARE.head, BARE)
        elif self._marks and not start.startswith(self._marks):
            self._read = self._text
        if self._read == self._head:
            self._margin, self._held = self._held[: -len(start)], start
        return []

    def _text(self) -> list[AnswerPiece] | None:
        """Text up to the next mark; a tail that may begin one is held back."""
        text, marked = self._cut()
        return [AnswerPiece("text", text)] if text else [] if marked else None

    def _cut(self) -> tuple[str, bool]:
        """Take what stands before the next mark, or before what may become one; whether a mark is there."""
        places = [at for mark in self._marks if (at := self._held.find(mark)) >= 0]
        kept = max((overlap(self._held, mark) for mark in self._marks), default=0)
        at = min(places, default=len(self._held) - kept)
        text, self._held = self._held[:at], self._held[at:]
        if places:
            self._read = self._head
        return text, bool(places)

    def _head(self) -> list[AnswerPiece] | None:
        """The call up to the beginning of its arguments."""
        found = self._find(self._heads)
        if found is None:
            return None
        if not found:
            mark = next((each for each in self._marks if self._held.startswith(each)), "")
            length = len(mark) or (1 if self._mark else len(self._held))
            text, self._held, self._read = self._held[:length], self._held[length:], self._text
            text, self._margin = self._margin + text, ""
            return [AnswerPiece("text", text)]
        if self._beside:
            self._read = self._whole
            return []
        return self._begin(*found)

    def _find(self, heads: dict[str, str]) -> tuple[()] | tuple[str, int] | None:
        """The tool whose call begins here, and how long its head is; () = none does, None: it is not decided."""
        found = [(match(head, self._held), head) for head in heads]
        if any(length is None for length, _ in found):
            return None
        length, head = max((length or 0, head) for length, head in found)
        return (heads[head], length - (self._form.arguments == "json")) if length > 0 else ()

    def _begin(self, name: str, length: int) -> list[AnswerPiece]:
        self._held, self._margin, self._read = self._held[length:], "", self._arguments
        if self._form.arguments == "json":
            self._values = Balance()
        else:
            style = Tags if self._form.arguments == "tags" else Literals
            self._values = style(self._form, parse_json(self._tools[name].parameters) or {})
        return [AnswerPiece("name", name)]

    def _arguments(self) -> list[AnswerPiece] | None:
        """As far as they are known."""
        text, self._held, ended = self._values.read(self._held)
        if ended:
            self._read = self._after
        return [AnswerPiece("arguments", text)] if text else [] if ended else None

    def _after(self) -> list[AnswerPiece] | None:
        """Behind the arguments: the end of the call, and perhaps another one."""
        form = self._form
        found = self._find(self._spell(form.tail + form.between + form.head, form))
        if found:
            return self._begin(*found)
        self._read = self._after if found is None else self._behind
        return None if found is None else []

    def _behind(self) -> list[AnswerPiece] | None:
        """Behind calls, where only the mark begins another one."""
        return [] if self._cut()[1] else None

    def _whole(self) -> None:
        """An object that begins as a call does, up to the end of the answer."""

    def _decide(self, text: str) -> list[AnswerPiece]:
        """The call that `text` is, or the text if more stands in it than a call."""
        alone = CallReader(tuple(self._tools.values()), self._form)
        pieces = alone.push(text)
        ended = match(self._form.tail + self._form.last, alone._held) if alone._read == alone._after else 0
        more = ended is not None and alone._held[max(ended, 0) :].strip()
        return [AnswerPiece("text", text)] if more or alone._read == alone._behind else pieces


def parse_json(text: str) -> Any:
    """The value of a whole JSON text; None if it is cut off or no JSON (as one of a draft model alone may be)."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value
