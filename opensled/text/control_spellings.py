"""Where the strings of people in a chat spell control tokens, and how a mark breaks such a spelling.

Strings of people are all strings of messages and tools: texts, names, ids, arguments of calls, schemas with their keys.
The marks are put in before a chat is rendered, so whatever its text then spells was written by the template; afterwards
they are taken out.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from opensled.core.messages import ChatMessage, Tool
from opensled.text.chat_forms import short_id

# What templates know as roles is no text of people.
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "model"})
OF_ASSISTANTS = frozenset({"content", "reasoning"})  # an assistant may have written markup in these
IDS = frozenset({"id", "tool_call_id"})  # opaque: one that would be broken has a short id in its place
JSON_FIELDS = frozenset({"arguments", "parameters"})  # of calls and tools: their strings are within JSON
MARKS = 10**11  # so many; digits stay as they are where a template changes cases, or writes JSON in ASCII
NEVER = "(?!)"  # a regular expression that is nowhere

Change = Callable[[str], str]
Variables = Mapping[str, Any] | None  # of the template


class Chat(NamedTuple):
    """What a chat template is given."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]
    variables: Variables = None


def new_mark() -> str:
    """A mark for one chat, which no text of it holds but by a rare chance."""
    return str(MARKS + secrets.randbelow(MARKS))


class Spellings:
    """The spellings of control tokens in strings of people, and of the parts of which a template could make one."""

    def __init__(self, tokens: Collection[str], markup: Collection[str]) -> None:
        """`markup`: those of `tokens` that the text of an assistant may hold, such as the tags of its thoughts."""
        self.whole = re.compile(trie(tokens) or NEVER)
        self._starts = {case for token in tokens for case in _cases(token[0])}
        self._ends = {case for token in tokens for case in _cases(token[-1])}
        self._longest = max(map(len, tokens), default=0)
        self._joined = "\0".join(["", *(token.lower() for token in tokens), ""])
        self._markup = re.compile(f"({trie(markup) or NEVER})")

    def are_in(self, chat: Chat) -> bool:
        """Whether a string of people spells a control token."""
        return self._some(chat, lambda text: self.whole.search(text) is not None)

    def may_be_in(self, chat: Chat) -> bool:
        """Whether a string of people could be a part of one: it has the first letter, or what may follow it."""
        starts = self._starts
        return self._some(chat, lambda text: any(start in text for start in starts) or self._follows(text))

    def broken(self, chat: Chat, mark: str) -> Chat:
        """With `mark` in everything of which a template could make a control token.

        It may change cases, cut and join texts, or write a name between letters of its own.
        """

        def cut(text: str) -> str:
            follows = self._follows(text)
            for start in self._starts:
                text = text.replace(start, start + mark)
            return re.sub(r"^\s*", r"\g<0>" + mark, text) if follows else text

        return self._change_chat(chat, cut)

    def _some(self, chat: Chat, test: Callable[[str], bool]) -> bool:
        """Whether `test` holds for a string of people."""
        found = False

        def look(text: str) -> str:
            nonlocal found
            found = found or test(text)
            return text

        self._change_chat(chat, look)
        return found

    def _change_chat(self, chat: Chat, change: Change) -> Chat:
        """A chat with its strings of people changed; of an assistant's text, those parts that are no markup."""

        def assistants(text: str) -> str:
            parts = self._markup.split(text)
            return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))

        return change_chat(chat, change, assistants)

    def _follows(self, text: str) -> bool:
        """Whether a control token can go on with `text`, or end with the beginning of it."""
        head = text.lstrip()[: self._longest].lower()
        if head and len(head) < self._longest and head.rstrip() in self._joined:
            return True
        if self._ends.isdisjoint(head):
            return False
        ends = (at + 1 for at, letter in enumerate(head) if letter in self._ends)
        return any(head[:end] + "\0" in self._joined for end in ends)


def trie(words: Collection[str]) -> str:
    """A regular expression for the longest of `words` at a place; "" if there is no word.

    It tries letters that several words share once: some tokenizers have thousands of control tokens.
    """
    rests: dict[str, list[str]] = {}
    for word in filter(None, words):
        rests.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(letter) + trie(after) for letter, after in rests.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "")


def change_chat(chat: Chat, others: Change, assistants: Change) -> Chat:
    """A chat with its strings of people changed; `assistants` changes the contents of an assistant's turns."""
    return Chat(
        [
            _message(message, assistants if message.role == "assistant" else others, others)
            for message in chat.messages
        ],
        [_object(tool, others) for tool in chat.tools],
        chat.variables and {name: _value(value, others) for name, value in chat.variables.items()},
    )


def _message(message: ChatMessage, of_content: Change, others: Change) -> ChatMessage:
    made = _object(message, others)
    content, offsets = _between_pictures(message, of_content)
    if content != message.content:
        images = tuple(
            placed._replace(offset=at) for placed, at in zip(message.images, offsets, strict=False)
        )
        made = replace(made, content=content, images=images)
    if (reasoning := of_content(message.reasoning)) != message.reasoning:
        made = replace(made, reasoning=reasoning)
    calls = tuple(_object(call, others) for call in message.tool_calls)
    return replace(made, tool_calls=calls) if calls else made


def _between_pictures(message: ChatMessage, change: Change) -> tuple[str, list[int]]:
    """The changed content, and where its pictures are in it."""
    cuts = (0, *[placed.offset for placed in message.images], len(message.content))
    content, offsets = "", []
    for low, high in pairwise(cuts):
        content += change(message.content[low:high])
        offsets.append(len(content))
    return content, offsets


def _object(value: Any, change: Change) -> Any:
    """A message, call or tool with its own strings changed, but for `OF_ASSISTANTS`."""
    changes = {}
    for name in _text_fields(value.__class__):
        text = getattr(value, name)
        if name == "role" and text in ROLES:
            continue
        new = _json(text, change) if name in JSON_FIELDS else change(text)
        if new != text:
            changes[name] = short_id(text) if name in IDS else new
    return replace(value, **changes) if changes else value


@cache
def _text_fields(kind: type) -> list[str]:
    """With the postponed annotations of opensled/core/messages.py, the type of a field is its source."""
    return [field.name for field in fields(kind) if field.type == "str" and field.name not in OF_ASSISTANTS]


def _json(text: str, change: Change) -> str:
    """JSON with its strings changed, which are read without their escapes; what is no JSON is refused later."""
    try:
        value = json.loads(text) if text else None
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
