"""Workloads from a file: one JSON object a line, in the forms that people have lying about.

{"messages": [{"role", "content"}, ...]}   a chat up to the user's last turn (OpenAI)
{"prompt": "TEXT"}                         raw text to go on with
{"turns": ["TEXT", ...]}                   what a user says, turn by turn (MT-bench, Spec-Bench)
{"conversations": [{"from", "value"}, ..]} a recorded chat, of which the user's turns are asked (ShareGPT)

Beside these a line may say "id", "max_tokens", "temperature", "seed", "answer" and "task"; other keys are ignored,
for published files have many. A whole file that is one JSON list of such objects works as well.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.testbed.load.load import Item
from opensled.core.errors import UsageError
from opensled.core.messages import ChatMessage

USER = ("human", "user")  # who asks, in ShareGPT's words
SETTINGS: dict[str, type | tuple[type, ...]] = {
    "id": (str, int),
    "max_tokens": int,
    "temperature": (int, float),
    "seed": int,
    "answer": str,
    "task": str,
}

Asked = tuple[str | tuple[ChatMessage, ...], tuple[str, ...]]  # the prompt, and the user's turns after it


def read_chats(path: Path, *, count: int, max_tokens: int, turns: int = 1) -> list[Item]:
    """The first `count` items of the file, each with at most `turns` turns of its user.

    Raises UsageError naming the line that cannot be used.
    """
    items: list[Item] = []
    for where, line in _lines(path):
        if len(items) == count:
            break
        items.append(_item(line, where, max_tokens, turns))
    if not items:
        raise UsageError(f"{path} holds nothing to ask")
    return items


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it stands, object) of each line, or of each entry of the list."""
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if text.lstrip().startswith("["):
        yield from (
            (f"{path}: entry {number}", entry) for number, entry in enumerate(_json(text, str(path)), 1)
        )
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield f"{path}:{number}", _json(line, f"{path}:{number}")


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: this is no JSON: {error}") from None


def _item(line: Any, where: str, max_tokens: int, turns: int) -> Item:
    form = next((form for form in FORMS if isinstance(line, Mapping) and form in line), None)
    if form is None:
        raise UsageError(f"{where}: an object with one of {', '.join(FORMS)} is needed")
    prompt, later = FORMS[form](line[form], f"{where}: {form}")
    settings: dict[str, Any] = {"id": where.rpartition("/")[2], "max_tokens": max_tokens}
    settings |= _settings(line, where)
    return Item(prompt=prompt, turns=later[: turns - 1], **settings)


def _settings(line: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = {name: line[name] for name in SETTINGS if line.get(name) is not None}
    for name, value in found.items():
        if not isinstance(value, SETTINGS[name]) or isinstance(value, bool):
            raise UsageError(f"{where}: {name} = {value!r} makes no sense")
    if found.get("max_tokens", 1) < 1:
        raise UsageError(f"{where}: max_tokens must be at least 1")
    return found | ({"id": str(found["id"])} if "id" in found else {})


def _messages(value: Any, where: str) -> Asked:
    said = [_strings(entry, ("role", "content"), where) for entry in _list(value, where)]
    return tuple(ChatMessage(role, content) for role, content in said), ()


def _turns(value: Any, where: str) -> Asked:
    first, *later = (_text(turn, where) for turn in _list(value, where))
    return (ChatMessage("user", first),), tuple(later)


def _conversations(value: Any, where: str) -> Asked:
    said = [_strings(entry, ("from", "value"), where) for entry in _list(value, where)]
    asked = [text for who, text in said if who in USER]
    if not asked:
        raise UsageError(f"{where}: no turn is from the user ({' or '.join(USER)})")
    return (ChatMessage("user", asked[0]),), tuple(asked[1:])


FORMS: dict[str, Callable[[Any, str], Asked]] = {
    "messages": _messages,
    "prompt": lambda value, where: (_text(value, where), ()),
    "turns": _turns,
    "conversations": _conversations,
}


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise UsageError(f"{where}: a list that is not empty is needed")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where}: {value!r} is no text")
    return value


def _strings(entry: Any, keys: Sequence[str], where: str) -> list[str]:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: {entry!r} is no object with {' and '.join(keys)}")
    return [_text(entry.get(key), f"{where}: {key}") for key in keys]
