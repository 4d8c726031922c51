"""Reads the arguments of a call, in the style of a model's form, as the JSON of the API, while they grow."""

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from opensled.core.messages import CallForm
from opensled.text.call_forms import kinds, match, pattern


class Read(NamedTuple):
    """What further characters of a call's arguments are: `json` of them, the `rest`, and whether they are at an end."""

    json: str
    rest: str
    ended: bool


class Balance:
    """Follows a JSON object from its opening brace, which comes first, to the brace that closes it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def read(self, text: str) -> Read:
        end = self.end(text)
        return Read(text[:end], text[len(text[:end]) :], end is not None)

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


class Tags:
    """Reads parameters between tags, each as it is complete."""

    def __init__(self, form: CallForm, schema: dict[str, Any]) -> None:
        self._form, self._schema, self._begun = form, schema, False
        self._one = re.compile(
            f"{pattern(form.before_key)}(.*?){pattern(form.after_key)}(.*?){pattern(form.end)}", re.DOTALL
        )

    def read(self, text: str) -> Read:
        made = ""
        while match(self._form.before_key, text) != -1:
            found = self._one.match(text) if self._form.end in text else None  # not again and again
            if found is None:
                return Read(made, text, False)
            key, value = found[1], by_schema(_unframed(found[2]), found[1], self._schema)
            made += f"{', ' if self._begun else '{'}{to_json(key)}: {to_json(value)}"
            self._begun, text = True, text[found.end() :]
        return Read(made + ("}" if self._begun else "{}"), text, True)


DEPTHS = {**dict.fromkeys("([{", 1), **dict.fromkeys(")]}", -1)}


class Literals:
    """Reads arguments in parentheses or braces, when they are complete; strings stand between `quotes`."""

    def __init__(self, form: CallForm, schema: dict[str, Any]) -> None:
        self._schema = schema
        own = form.arguments == "quotes"
        self._equals, self._close = form.after_key.strip("␣"), form.tail.strip("␣")[:1]
        quoted = (
            f"{re.escape(form.end)}.*?{re.escape(form.end)}"
            if own
            else r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
        )
        self._sign = re.compile(f"{quoted}|{re.escape(form.end) if own else '.'}|.", re.DOTALL)
        self._quote = form.end if own else ""

    def read(self, text: str) -> Read:
        depth, parts = 0, [""]
        if self._close not in text:
            return Read("", text, False)
        for found in self._sign.finditer(text):
            sign = found[0]
            if sign in (self._quote, '"', "'"):  # it goes on
                break
            depth += DEPTHS.get(sign, 0)
            if depth < 0:
                return Read(to_json(dict(self._pairs(parts))), text[found.start() :], True)
            if sign == "," and not depth:
                parts.append("")
            else:
                parts[-1] += sign
        return Read("", text, False)

    def _pairs(self, parts: list[str]) -> Iterator[tuple[str, Any]]:
        for part in parts:
            key, equals, value = part.partition(self._equals)
            if equals:
                yield key.strip(), self._value(value.strip(), key.strip())

    def _value(self, text: str, key: str) -> Any:
        if self._quote:
            cut = re.split(f"{re.escape(self._quote)}(.*?){re.escape(self._quote)}", text, flags=re.DOTALL)
            plain = [re.sub(r"([\w.$-]+)\s*:", r'"\1":', part) for part in cut[::2]]
            text = "".join(
                part for pair in zip(plain, [*map(to_json, cut[1::2]), ""], strict=True) for part in pair
            )
        value = parsed(text)
        return value if isinstance(value, str) else by_schema(text, key, self._schema)


def _unframed(text: str) -> str:
    """A value without the line breaks that some models put around each."""
    return text[1:-1] if text[:1] == text[-1:] == "\n" else text


def by_schema(text: str, key: str, schema: dict[str, Any]) -> Any:
    """The value of a parameter that was written without the signs of JSON around texts."""
    known = schema.get("properties")
    own = known.get(key) if isinstance(known, dict) else None
    types, value = kinds(own, schema), parsed(text.strip())
    if isinstance(own, dict) and text.strip() in (own.get("enum") or ()):
        return text.strip()
    if types == {"string"} or (isinstance(value, str) and (not types or "string" in types)):
        return text
    fits = not types or not kinds({"const": value}, {}).isdisjoint(types)
    if isinstance(value, int | float) and not isinstance(value, bool):
        fits = fits or "number" in types or ("integer" in types and value == int(value))
    return value if fits or "string" not in types else text


def parsed(text: str) -> Any:
    """The value that a text spells in JSON, or in Python; the text itself if in neither."""
    for read in (json.loads, ast.literal_eval, {"true": True, "false": False, "null": None}.__getitem__):
        try:
            value = read(text)
            json.dumps(value, allow_nan=False)
            return value
        except (ValueError, TypeError, SyntaxError, KeyError, RecursionError, MemoryError):
            continue
    return text


def to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
