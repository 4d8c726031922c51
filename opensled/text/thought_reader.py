"""Reads the growing text of an answer: what is thought, what is answered, and what calls a tool in a channel."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from opensled.core.messages import CallForm, ThoughtTags
from opensled.core.protocol import overlap
from opensled.text.call_forms import match, opening
from opensled.text.families import CALL, CHANNELS, Part, marks_of
from opensled.text.tokenizer import MARK

RECIPIENT = re.compile(r"\bto=(?:functions\.)?(\S+)")
THOUGHT_CHANNEL = re.compile("analysis|thought|think|reason")


class Start(NamedTuple):
    """How an answer begins, by the end of its prompt."""

    inside: bool  # within thoughts
    may_open: bool  # its first word may be the start tag


class Said(NamedTuple):
    """A piece of an answer: first what of it is thought, then what is answered, and a call in a channel."""

    thoughts: str = ""
    text: str = ""
    call: str = ""  # in the form that readers of calls know


class ThoughtReader:
    """Splits the growing text of an answer into thoughts and the rest, alike for every division into pieces.

    Blanks around the tags belong to neither.
    """

    def __init__(
        self,
        tags: ThoughtTags,
        start: Start,
        special: frozenset[str] = frozenset(),
        tools: Collection[str] = (),
        others: Sequence[ThoughtTags] = (),
        heads: Sequence[str] = (),
    ) -> None:
        """`special`: tokens of which marks are made, as MARK and their spelling; `others`: tags; `heads`: of calls."""
        self.special, self._tools, self._heads = special, tools, heads
        self._choice = [(one, spelled(tag, special)) for one in (tags, *others) for tag in one[::2] if tag]
        self._take(tags)
        channels = CHANNELS.get(tags.start)
        self._bodies: dict[str, Part] = {
            spelled(mark, special): part for mark, part in (channels.bodies if channels else {}).items()
        }
        names = (channels.first, *channels.ends, *channels.heads) if channels else ()
        self._borders = tuple([spelled(mark, special) for mark in names])
        self._ends = self._borders[: 1 + len(channels.ends)] if channels else ()  # of which a new head begins
        self.has_thought = start.inside and not channels  # the thoughts have begun, at least
        self._held = ""  # text that is not decided yet
        self._began = False  # the part now read has a first word
        self._thought = self._has_text = False  # a thought, a text has been shown
        # The answer stands between tags; where only the last is one of its own, always
        self._wrapped = bool(tags.answer_end and not tags.answer_start)
        self._head = self._given = ""  # of the message now read, and what of that the prompt has
        self._name = ""  # of the tool that it calls
        self._is_plain = bool(channels)  # no mark has come: the model may keep to no channels
        self._before: Read | None = None  # what was read before this head
        # Not bound to it: a copy reads by itself
        self._read: Read = ThoughtReader._answer
        if channels:
            self._read = ThoughtReader._in_head
        elif start.inside:
            self._read = ThoughtReader._thoughts
        elif start.may_open:
            self._read = ThoughtReader._opening
        elif tags.answer_start:
            self._read = ThoughtReader._gap

    def _take(self, tags: ThoughtTags) -> None:
        self.marks, self.tags = marks_of(tags), ThoughtTags(*[spelled(tag, self.special) for tag in tags])
        self._strong = [tag for tag in self.tags if MARK in tag or "|" in tag]  # no text has them by chance

    def begin(self, head: str) -> None:
        """With the end of the prompt, where that has the head of a message."""
        is_plain, self._is_plain = self._is_plain, False
        self.push(head)
        self._given = self._head
        self._is_plain = is_plain and not any(mark in head for mark in (*self._borders, *self._bodies))

    @property
    def decides(self) -> bool:
        """Whether thoughts may still come first."""
        first = self._read is ThoughtReader._in_head and self._before is None
        return first or self._read is ThoughtReader._opening

    @property
    def inside(self) -> bool:
        """Whether the thoughts go on, or the head behind them."""
        thoughts = ThoughtReader._thoughts
        return self._read is thoughts or (self._read is ThoughtReader._in_head and self._before is thoughts)

    def push(self, text: str) -> Said:
        """What these further characters decide."""
        self._held += text
        said = Said()
        while self._held and (more := self._read(self)) is not None:
            said = Said(*[one + other for one, other in zip(said, more)])
        return said

    def flush(self) -> Said:
        """The rest at the end of the answer, without a mark that was begun by a special token."""
        text, self._held = self._held.partition(MARK)[0], ""
        if self._read is ThoughtReader._in_head:
            return Said()
        if self._read is ThoughtReader._in_call:
            return Said(call=self._called(text))
        if not self.inside:
            return Said("", self._shown(text))
        at = self._call_at(text, may=False)
        thoughts = text[:at].rstrip()
        return Said(thoughts if self._began else thoughts.lstrip(), call=text[at:])

    def _call_at(self, text: str, may: bool = True) -> int:
        """Where a call begins, or `may` begin; the length of a text that has none."""
        mark = opening(CallForm(self._heads[0])) if self._heads else ""
        for found in re.finditer(re.escape(mark), text) if mark else ():
            lengths = [match(head, text[found.start() :]) for head in self._heads]
            if any(may if length is None else length > 0 for length in lengths):
                return found.start()
        return len(text) - (overlap(text, mark) if may else 0)

    def _opening(self) -> Said | None:
        """Up to the start tag, or to a word that is none."""
        start = self._held.lstrip()
        if any(tag.startswith(start) and tag != start for _, tag in self._choice):
            return None
        self._read = ThoughtReader._answer
        if found := next((tags for tags, tag in self._choice if start.startswith(tag)), None):
            self._take(found)
        if start.startswith(self.tags.start):
            self._think(start[len(self.tags.start) :])
        elif found:
            self._held, self._read = start, ThoughtReader._gap
        return Said()

    def _think(self, rest: str) -> None:
        self.has_thought, self._began = True, False
        self._held, self._read = rest, ThoughtReader._thoughts

    def _thoughts(self) -> Said | None:
        """Up to the end tag; what may begin it, and blanks that may stand before it, are held back."""
        answer = [tag for tag in self._strong if tag == self.tags.answer_start]
        text, mark = self._until(self.tags.end, *answer, *self._borders, *self._bodies)
        shown = text.rstrip()
        if not mark:  # a call in them is one if they end with it
            shown = text[: self._call_at(text)].rstrip()
            self._held = text[len(shown) :] + self._held
        if not self._began:
            shown = shown.lstrip()
        thoughts = self._apart(shown.replace(MARK, ""), self._thought)
        self._thought = self._thought or bool(thoughts)
        if mark:
            self._read, self._wrapped = ThoughtReader._gap, self._wrapped or mark == self.tags.answer_start
            self._turn(mark)
        return Said(thoughts) if shown or mark else None

    def _gap(self) -> Said | None:
        """The blanks behind the end tag, and the tag before the answer."""
        self._held = self._held.lstrip()
        tag = self.tags.answer_start
        if not self._held or (tag.startswith(self._held) and tag != self._held):
            return None
        if tag and self._held.startswith(tag):
            self._held, self._wrapped = self._held[len(tag) :], True
        else:
            self._began, self._read = False, ThoughtReader._answer
        return Said()

    def _answer(self) -> Said | None:
        """Its text. Plain text cannot open thoughts again."""
        closing = [self.tags.answer_end] if self._wrapped and self.tags.answer_end else []
        text, mark = self._until(*self._strong, *closing, *self._borders, *self._bodies)
        if self._wrapped and not mark:
            self._held = text[len(text.rstrip()) :] + self._held
            text = text.rstrip()
        elif self._wrapped and mark == self.tags.answer_end:
            text, self._wrapped, self._read = text.rstrip(), False, ThoughtReader._gap
        shown = self._shown(text)
        if mark == self.tags.start:
            self._think(self._held)
        self._turn(mark)
        return Said("", shown) if text or mark else None

    def _shown(self, text: str) -> str:
        """A text of the answer without special tokens."""
        for piece in self.special if MARK in text else ():
            text = text.replace(MARK + piece, "")
        shown = self._apart(text, self._has_text)
        self._has_text = self._has_text or bool(text)
        return shown

    def _apart(self, text: str, goes_on: bool) -> str:
        """The text of a part; one that `goes_on` with an earlier part begins on a line of its own."""
        begins = bool(text) and not self._began
        self._began = self._began or bool(text)
        return f"\n{text}" if begins and goes_on else text

    # -- channels

    def _turn(self, mark: str) -> None:
        """Begin the head that a border begins, or the body behind it."""
        self._is_plain = self._is_plain and not mark
        if mark in self._bodies:
            self._enter(self._bodies[mark])
        elif mark in self._borders:
            if self._read is not ThoughtReader._in_head:
                is_thought, self._head = self._read is ThoughtReader._gap, ""
                self._before = ThoughtReader._thoughts if is_thought else ThoughtReader._answer
            self._head = "" if mark in self._ends else f"{self._head} "
            self._read = ThoughtReader._in_head

    def _in_head(self) -> Said | None:
        """The words up to a body. A model that keeps to no channels writes text where its first head is."""
        text, mark = self._until(*self._borders, *self._bodies)
        self._head += text
        said = self._head.removeprefix(self._given)
        if self._is_plain and not re.match(r"\s*(t|to|to=.*)?$", said):
            self._held, self._head, self._read = said + mark + self._held, "", ThoughtReader._answer
            return Said()
        self._turn(mark)
        return Said() if mark else None

    def _enter(self, part: Part) -> None:
        """Begin a body; `part` "head": the one that its head says."""
        self._began, name = False, RECIPIENT.search(self._head)
        if name is not None and name[1] in self._tools:
            self._name, self._read = name[1], ThoughtReader._in_call
        elif part == "thoughts" or (part == "head" and (name or THOUGHT_CHANNEL.search(self._head))):
            self._think(self._held)
        else:
            self._read = ThoughtReader._answer

    def _in_call(self) -> Said | None:
        """The arguments of a call."""
        text, mark = self._until(*self._borders, *self._bodies)
        call = self._called(text)
        if mark:
            call += ("" if self._began else self._called("{}")) + CALL[1]
            self._turn(mark)
        return Said(call=call) if call else None

    def _called(self, arguments: str) -> str:
        """Arguments, behind the name before the first of them."""
        if self._began or not arguments.strip():
            return arguments if self._began else ""
        self._began = True
        return CALL[0].format(self._name) + arguments.lstrip()

    def _until(self, *marks: str) -> tuple[str, str]:
        """The text before the first mark, and this; without one, up to what may begin one."""
        found = [(at, -len(mark), mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        at, _, mark = min(found, default=(len(self._held), 0, ""))
        keep = 0 if mark else max((overlap(self._held, mark) for mark in marks), default=0)
        text = self._held[: at - keep]
        self._held = self._held[at + len(mark) if mark else len(text) :]
        return text, mark


def spelled(mark: str, special: Collection[str]) -> str:
    """A text with a sign before each special token in it."""
    pieces = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    return re.sub(pieces, lambda found: MARK + found[0], mark) if pieces else mark


Read = Callable[[ThoughtReader], Said | None]
