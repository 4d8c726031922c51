"""Where the strings of people in a chat spell control tokens, and how such a spelling is broken by a mark.

A string of people is every string of messages and tools: texts, names, ids, arguments of calls, schemas with their keys.
A mark is put inside each spelling before the chat is rendered and taken out afterwards, so that whatever is spelled in
the rendered text while the marks are in it was written by the template.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, NamedTuple

from opensled.messages import ChatMessage, Tool

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})  # no text of people
JSON_TEXTS = frozenset({"arguments", "parameters"})  # fields of calls and tools whose strings are within JSON
NEVER = "(?!)"  # a regular expression that is nowhere
MARK_DIGITS = 24  # digits stay as they are where a template changes cases, or writes JSON in ASCII
Change = Callable[[str], str]


class Chat(NamedTuple):
    """What a chat template is given."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]


def new_mark() -> str:
    """A mark for one chat: no text of it can hold it, by chance or by intent."""
    return "".join(secrets.choice("123456789") for _ in range(MARK_DIGITS))


class Spellings:
    """The spellings of control tokens in the strings of people."""

    def __init__(self, tokens: Collection[str], markup: Collection[str]) -> None:
        """`markup`: those of `tokens` that the text of an assistant may hold, such as the tags of its thoughts."""
        self._starts = "".join(sorted({case for token in tokens for case in _cases(token[0])}))
        self._ends = {case for token in tokens for case in _cases(token[-1])}
        self._longest = max(map(len, tokens), default=0)
        self._joined = "\0".join(["", *(token.lower() for token in tokens), ""])
        barred = [token for token in tokens if token not in markup]
        self._spelled = {False: _spelled_at(tokens), True: _spelled_at(barred)}
        kept = f"(?!{trie(markup)})" if markup else ""
        start = f"[{re.escape(self._starts)}]" if tokens else NEVER
        self._started = {False: re.compile(start), True: re.compile(kept + start, re.IGNORECASE)}

    def concern(self, chat: Chat) -> bool:
        """Whether a string of people could be a part of a control token: it has the first letter of one, or follows it."""
        found = False

        def look(text: str, _: bool) -> str:
            nonlocal found
            found = found or any(start in text for start in self._starts) or self._follows(text)
            return text

        changed(chat, look)
        return found

    def broken(self, chat: Chat, mark: str) -> Chat:
        """With `mark` in each spelling of a control token, in any case of its letters."""
        return changed(chat, lambda text, own: self._spelled[own].sub(r"\g<0>" + mark, text))

    def broken_anywhere(self, chat: Chat, mark: str) -> Chat:
        """With `mark` in everything that a template could make a control token of.

        It might cut or join texts, or write a string of people next to its own letters.
        """

        def cut(text: str, own: bool) -> str:
            text = self._started[own].sub(r"\g<0>" + mark, text)
            return re.sub(r"^\s*", r"\g<0>" + mark, text, count=1) if self._follows(text) else text

        return changed(chat, cut)

    def _follows(self, text: str) -> bool:
        """Whether `text` is what a control token goes on with, or ends with."""
        head = text.lstrip()[: self._longest].lower()
        if not head:
            return False
        if len(head) < self._longest and head.rstrip() in self._joined:
            return True
        ends = (at + 1 for at, letter in enumerate(head) if letter in self._ends)
        return any(head[:end] + "\0" in self._joined for end in ends)


def trie(words: Collection[str]) -> str:
    """A regular expression for the longest of `words`, which must not be empty, that is at a place.

    Letters that several share are tried once: tokenizers have thousands of control tokens.
    """
    heads: dict[str, list[str]] = {}
    for word in words:
        if word:
            heads.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(head) + trie(rests) for head, rests in heads.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "")


def changed(chat: Chat, change: Callable[[str, bool], str]) -> Chat:
    """With each string of people changed; `change` is told whether it is the text of an assistant."""
    return Chat(
        [_message(message, change) for message in chat.messages],
        [_object(tool, lambda text: change(text, False)) for tool in chat.tools],
    )


def _message(message: ChatMessage, change: Callable[[str, bool], str]) -> ChatMessage:
    own = message.role == "assistant"
    content, offsets = _between_pictures(message, lambda text: change(text, own))
    made = _object(message, lambda text: change(text, False))
    calls = tuple(_object(call, lambda text: change(text, False)) for call in message.tool_calls)
    images = tuple(placed._replace(offset=at) for placed, at in zip(message.images, offsets))
    return replace(made, content=content, images=images, tool_calls=calls)


def _between_pictures(message: ChatMessage, change: Change) -> tuple[str, list[int]]:
    """The changed content, and where its pictures are in it."""
    cuts = (0, *[placed.offset for placed in message.images], len(message.content))
    content, offsets = "", []
    for low, high in pairwise(cuts):
        content += change(message.content[low:high])
        offsets.append(len(content))
    return content, offsets


def _object(value: Any, change: Change) -> Any:
    """A message, call or tool with its own strings changed, but for a content."""
    return replace(value, **dict(_changes(value, change)))


def _changes(value: Any, change: Change) -> Iterator[tuple[str, str]]:
    for field in fields(value):
        text = getattr(value, field.name)
        if not isinstance(text, str) or field.name == "content" or (field.name == "role" and text in ROLES):
            continue
        new = _json(text, change) if field.name in JSON_TEXTS else change(text)
        if new != text:
            yield field.name, new


def _json(text: str, change: Change) -> str:
    """JSON with its strings changed, as they are without escapes; what is no JSON is refused later."""
    if not text:
        return text
    try:
        value = json.loads(text)
        made = _value(value, change)
        return text if made == value else json.dumps(made, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _value(value: Any, change: Change) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_value(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): _value(item, change) for key, item in value.items()}
    return value


def _cases(letter: str) -> set[str]:
    return {letter, *letter.lower(), *letter.upper()}


def _spelled_at(tokens: Collection[str]) -> re.Pattern[str]:
    """The first letter of each spelling, those within others too."""
    heads: dict[str, list[str]] = {}
    for token in tokens:
        heads.setdefault(token[0], []).append(token[1:])
    branches = [f"{re.escape(head)}(?={trie(rests)})" for head, rests in heads.items()]
    return re.compile("|".join(branches) or NEVER, re.IGNORECASE)
