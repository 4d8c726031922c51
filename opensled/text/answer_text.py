"""Text streams that never take a character back: the text of a growing answer, up to a stop string."""

from collections.abc import Collection, Sequence
from copy import copy
from itertools import pairwise
from typing import NamedTuple

from opensled.core.protocol import common_prefix, overlap
from opensled.text.thought_reader import ThoughtReader
from opensled.text.tokenizer import MARK, TargetTokenizer

UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are no whole character (yet)


class TextStream:
    """Decodes a growing sequence: the texts it returns, joined, are the decoding of all ids at once.

    Decoders look at neighbours (the first token loses its space, bytes join into a character). So a token is decoded
    after `context`, the tokens of the text returned last, and is held back until its text is complete.
    """

    def __init__(self, tokenizer: TargetTokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete."""
        return "".join([self._push(token) for token in ids])

    def push_each(self, token: int) -> list[str]:
        """Like `push` of one id, but the text of each token held back and of this one; [] while they are held back."""
        context, held = self._context, [*self._held, token]
        text = self.push([token])
        return self._shares(context, held, text) if text else []

    def flush(self) -> str:
        """The rest at the end of the sequence; an incomplete character becomes U+FFFD."""
        return self._release(self._pending())

    def _push(self, token: int) -> str:
        if token in self._tokenizer.special_ids:
            return ""
        self._held = [*self._held, token]
        if self._tokenizer.is_raw_byte(token):
            return ""  # a later invalid byte turns the whole run into U+FFFD
        text = self._pending()
        return "" if text.endswith(UNFINISHED) else self._release(text)

    def _pending(self) -> str:
        """The text of the tokens held back."""
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._held)[len(before) :]

    def _shares(self, context: list[int], held: list[int], text: str) -> list[str]:
        """`text` divided among its tokens; a character belongs to the token that completes it."""
        skipped = len(self._tokenizer.decode(context))
        ends = [0]
        for count in range(1, len(held)):
            known = self._tokenizer.decode(context + held[:count])[skipped:]
            ends.append(max(ends[-1], common_prefix(known, text)))
        return [text[start:end] for start, end in pairwise([*ends, len(text)])]

    def _release(self, text: str) -> str:
        if text:
            self._context, self._held = self._held, []
        return text


class StopStrings:
    """Cuts a stream of text before the stop string that completes first, for every division into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit = ""  # the stop string that is complete: no more text follows; "" = none is

    def push(self, text: str) -> str:
        """The text that can be shown; holds back the longest tail that may become a stop string."""
        if self.hit:
            return ""
        text = self._held + text
        start, self.hit = self._first(text)
        doubtful = max((overlap(text, stop) for stop in self._stops), default=0)
        shown = text[:start] if self.hit else text[: len(text) - doubtful]
        self._held = "" if self.hit else text[len(shown) :]
        return shown

    def flush(self) -> str:
        """The text held back, at the end of a sequence without a stop string."""
        text, self._held = self._held, ""
        return text

    def _first(self, text: str) -> tuple[int, str]:
        """Start of the stop string that ends first, and itself; the longest of those that end together. "" = none."""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1:] if found else (0, "")


class Told(NamedTuple):
    """What tokens add to an answer."""

    ids: tuple[int, ...]
    text: str
    thoughts: str = ""  # before the text
    thought_tokens: int = 0  # tokens of thoughts, tags included, that were not counted before


class AnswerText(TextStream):
    """The thoughts and the text of a growing answer, up to a stop string in the text."""

    def __init__(
        self, tokenizer: TargetTokenizer, stop: Sequence[str], ends: Collection[int] = (), marks: str = ""
    ) -> None:
        """`ends`: ids that end an answer; they have no text, also where they are no special tokens.

        `marks`: the text of special tokens that are shown, see `call_marks`.
        """
        super().__init__(tokenizer)
        self._marks = marks
        self._stops = StopStrings(stop) if stop else None
        self._ends = ends
        self._reader: ThoughtReader | None = None
        self._undecided = 0  # tokens that may belong to a start tag

    def think(self, reader: ThoughtReader | None) -> None:
        """Tell thoughts from the rest by `reader`, from the first token on; None: all is text."""
        self._reader = reader

    @property
    def stopped_by(self) -> str:
        """The stop string that ended it; "" = none has."""
        return self._stops.hit if self._stops else ""

    def guess(self, ids: Sequence[int]) -> str:
        """The thoughts and the text that these ids would add."""
        supposed = copy(self)  # neither it nor its stop strings ever change a list in place
        supposed._stops, supposed._reader = copy(self._stops), copy(self._reader)
        told = supposed.commit(tuple(ids))
        return told.thoughts + told.text

    def commit(self, ids: tuple[int, ...]) -> Told:
        """The ids up to the one that completes a stop string, and what can be shown now."""
        thoughts, text, counted = "", "", 0
        for count, token in enumerate(ids, 1):
            more = self._commit(token)
            thoughts, text, counted = (
                thoughts + more.thoughts,
                text + more.text,
                counted + more.thought_tokens,
            )
            if self.stopped_by:
                return Told(ids[:count], text, thoughts, counted)
        return Told(ids, text, thoughts, counted)

    def end(self) -> tuple[str, str]:
        """The thoughts and the text that were held back, at the end of the answer."""
        if self.stopped_by:
            return "", ""
        text, reader = self.flush(), self._reader
        said = [reader.push(text), reader.flush()] if reader else []
        shown = "".join([self._show(one.text, one.call) for one in said]) if reader else self._show(text)
        return "".join([one.thoughts for one in said]), shown + (self._stops.flush() if self._stops else "")

    def _commit(self, token: int) -> Told:
        reader = self._reader
        if reader is None:
            return Told((token,), self._show(self._spell(token)))
        undecided, was_inside = reader.decides, reader.inside
        said = reader.push(self._spell(token))
        self._undecided += undecided
        counted = int(was_inside)
        if undecided and not reader.decides:
            counted, self._undecided = self._undecided * reader.has_thought, 0
        return Told((token,), self._show(said.text, said.call), said.thoughts, counted)

    def _show(self, text: str, call: str = "") -> str:
        """A text of the answer, in which stop strings count, and a call behind it, in which they do not."""
        if self._stops is None:
            return text + call
        text = self._stops.push(text)
        return text if not call or self.stopped_by else text + self._stops.flush() + call

    def _spell(self, token: int) -> str:
        """The text of a token; of a special one, its spelling if marks of calls, or of the reader, are made of it."""
        spelled, reader = self._tokenizer.piece(token), self._reader
        if reader and spelled in reader.special:
            return super().flush() + MARK + spelled
        if token in self._ends and not (reader and spelled in reader.marks):
            return ""
        if token in self._tokenizer.special_ids and spelled in self._marks:
            return super().flush() + spelled
        return self.push([token])
