"""The thoughts before an answer: what stands around them, by the chat template, and how they are told from the rest.

A model thinks once, before it answers. The chat template either ends the prompt with the start tag, or with thoughts
that are closed already, or leaves it to the model to begin with the tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opensled.core.messages import ThoughtTags
from opensled.core.protocol import overlap
from opensled.text.tokenizer import TargetTokenizer

# Those of published chat templates.
KNOWN = (
    ThoughtTags("<think>", "</think>"),  # DeepSeek, Qwen, GLM, SmolLM3, Hunyuan, Nemotron
    ThoughtTags("[THINK]", "[/THINK]"),  # Magistral
    ThoughtTags("<seed:think>", "</seed:think>"),
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ThoughtTags("◁think▷", "◁/think▷"),  # Kimi
    ThoughtTags("<thought>", "</thought>"),  # EXAONE Deep
    ThoughtTags("<thinking>", "</thinking>"),
    ThoughtTags("<reasoning>", "</reasoning>"),
)
SPELLINGS = frozenset(tag for pair in KNOWN for tag in pair)
TAIL = 64  # ids at the end of a prompt that hold the tags, also where each letter is a token
# The keys by which templates read the thoughts of earlier answers.
KEYS = ("reasoning_content", "reasoning", "thinking")


def thought_tags(template: str) -> ThoughtTags | None:
    """What stands around the thoughts of a chat template's model; None: it has none that are known.

    Some templates only cut thoughts off of earlier answers, so the end tag decides.
    """
    return next((pair for pair in KNOWN if pair.end in template), None)


def thoughts_by_key(template: str, thoughts: str) -> dict[str, str]:
    """The thoughts of an earlier answer, by the keys that a template reads."""
    return {key: thoughts for key in KEYS if thoughts and re.search(rf"\b{key}\b", template)}


class Start(NamedTuple):
    """How an answer begins, by the end of its prompt."""

    inside: bool  # within thoughts
    may_open: bool  # its first word may be the start tag


def start_of(tags: ThoughtTags, tail: str) -> Start:
    """How an answer begins behind a prompt that ends with `tail`."""
    tail = tail.rstrip()
    inside = tail.endswith(tags.start)
    return Start(inside, not inside and not tail.endswith(tags.end))


def tail_of(prompt: Sequence[int], bytes_of: Callable[[int], bytes]) -> str:
    """The text at the end of a prompt, for `start_of`; `bytes_of`: those of one id."""
    return b"".join(map(bytes_of, prompt[-TAIL:])).decode(errors="replace")


def reader_of(
    tags: ThoughtTags | None, tokenizer: TargetTokenizer, prompt: Sequence[int]
) -> ThoughtReader | None:
    """The reader of the answer to a chat whose ids are `prompt`; None: the model writes no known thoughts."""
    if tags is None:
        return None
    return ThoughtReader(tags, start_of(tags, tail_of(prompt, tokenizer.token_bytes)))


class Said(NamedTuple):
    """A piece of an answer: first what of it is thought, then what is answered."""

    thoughts: str = ""
    text: str = ""


class ThoughtReader:
    """Splits the growing text of an answer into thoughts and the rest, alike for every division into pieces.

    Blanks around the tags belong to neither.
    """

    def __init__(self, tags: ThoughtTags, start: Start) -> None:
        self.tags = tags
        self.has_thought = start.inside  # the thoughts have begun, at least
        self._held = ""  # text that is not decided yet
        self._began = False  # the thoughts have a first word
        # Not bound to it: a copy reads by itself
        self._read: Callable[[ThoughtReader], Said | None] = ThoughtReader._answer
        if start.inside:
            self._read = ThoughtReader._thoughts
        elif start.may_open:
            self._read = ThoughtReader._opening

    @property
    def decides(self) -> bool:
        """Whether the start tag may still come."""
        return self._read is ThoughtReader._opening

    @property
    def inside(self) -> bool:
        """Whether the thoughts go on."""
        return self._read is ThoughtReader._thoughts

    def push(self, text: str) -> Said:
        """What these further characters decide."""
        self._held += text
        thoughts = answered = ""
        while self._held and (said := self._read(self)) is not None:
            thoughts += said.thoughts
            answered += said.text
        return Said(thoughts, answered)

    def flush(self) -> Said:
        """The rest at the end of the answer."""
        text, self._held = self._held, ""
        if not self.inside:
            return Said("", text)
        return Said(text.rstrip() if self._began else text.strip())

    def _opening(self) -> Said | None:
        """Up to the start tag, or to a word that is none."""
        start = self._held.lstrip()
        if self.tags.start.startswith(start) and start != self.tags.start:
            return None
        self._read = ThoughtReader._answer
        if start.startswith(self.tags.start):
            self.has_thought, self._read = True, ThoughtReader._thoughts
            self._held = start[len(self.tags.start) :]
        return Said()

    def _thoughts(self) -> Said | None:
        """Up to the end tag; what may begin it, and blanks that may stand before it, are held back."""
        text, tag, rest = self._held.partition(self.tags.end)
        keep = 0 if tag else overlap(text, self.tags.end)
        shown = text[: len(text) - keep].rstrip()
        self._held = rest if tag else self._held[len(shown) :]
        if not self._began:
            shown = shown.lstrip()
            self._began = bool(shown)
        if tag:
            self._read = ThoughtReader._gap
        return Said(shown) if shown or tag else None

    def _gap(self) -> Said | None:
        """The blanks behind the end tag."""
        self._held = self._held.lstrip()
        if self._held:
            self._read = ThoughtReader._answer
        return Said() if self._held else None

    def _answer(self) -> Said | None:
        text, self._held = self._held, ""
        return Said("", text)
