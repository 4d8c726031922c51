"""The notation in which bodies are described, of requests and of answers, for /openapi.json.

    count = -1 | integer 1..LARGEST         a union of a value and a type with a range, whose ends may be names
    Thing = {                               an object of these fields alone, all of which are there but for those with ?
      id: text /^th_/, size?: number        a text of a pattern
      kinds: ["a" | null] 0..9 -- Which.    a list of that length; a description, up to the end of the line
    }
    Asked = request{thing!: Thing, n: count?, *common}    fields with ! are there, others may be; further ones are empty
    open{*NAMES: any}                                     a field of each name; with any value also further ones
    open{type: name not ("a" | "b")}                      a text that is neither
    form = if GUIDES name else "text"                     the first if the name is of something that is so

`count?` may be empty, too. A name is of a type, of values, or of what another notation defines; components of the
document begin with a capital, and may be named before they are defined.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from http_api.effects import EMPTY

Schema = dict[str, Any]
Row = tuple[str, float, float]  # the kind of a field, its smallest value and its largest
Rows = dict[str, Row]
Names = Mapping[str, Any]  # a schema, a tuple of values, a number of a range, or whether something is so

TOKEN = re.compile(
    r'--\s*(?P<about>.*)|(?P<value>"[^"]*")|(?P<pattern>/[^/\s]+/)|(?P<range>[\w.-]*?\.\.-?[\w.]*)'
    r"|(?P<number>-?\d+)|(?P<name>\w+)|(?P<mark>[{}\[\]()|:?!*=])|[\s,]+"
)
TYPES: dict[str, Any] = {
    "any": {},
    "none": {"anyOf": []},  # no alternative
    "text": {"type": "string"},
    "name": {"type": "string", "minLength": 1},
    "flag": {"type": "boolean"},
    "integer": {"type": "integer"},
    "natural": {"type": "integer", "minimum": 0},
    "number": {"type": "number"},
    "object": {"type": "object"},
    "switch": {"enum": [True, False, 0, *EMPTY]},  # a flag of a request; some languages write 0
    "true": (True,),
    "false": (False,),
    "null": (None,),
    "empty": EMPTY,
    "nothing": (*EMPTY, False),
    "no_values": (),
    "LARGEST": 2**31 - 1,
}
FURTHER: dict[str, Any] = {"": False, "open": True, "request": {"enum": list(EMPTY)}}  # fields of an object
BOUNDS = {"string": "Length", "array": "Items"}  # other types have a minimum and a maximum


def define(notation: str, names: Names) -> dict[str, Any]:
    """`names` and TYPES, and what the notation defines by them, in its order."""
    reader = _Reader(notation, {**TYPES, **names})
    while not reader.takes("end"):
        name = reader.next()
        reader.expect("=")
        reader.names[name] = reader.described(reader.union())
    return reader.names


def rows(group: Schema, ranged: bool) -> Rows:
    """The flags, numbers and texts of an object as `Fields.read` takes them; without `ranged` in any range."""
    return {name: _row(field, ranged) for name, field in group["properties"].items()}


def _row(field: Schema, ranged: bool) -> Row:
    """One that has values beside a type, or may be empty, is as the type has it."""
    if "anyOf" in field:
        return _row(next(each for each in field["anyOf"] if "enum" not in each), ranged)
    low, high = (field.get(end) if ranged else None for end in ("minimum", "maximum"))
    return field.get("type", "flag"), -math.inf if low is None else low, math.inf if high is None else high


def components_of(defined: Names) -> Schema:
    """The definitions with a place of their own in the document."""
    return {name: found for name, found in defined.items() if name[0].isupper() and isinstance(found, dict)}


class _Reader:
    """Reads a notation from left to right."""

    def __init__(self, notation: str, names: dict[str, Any]) -> None:
        self.names = names
        self._tokens = [(each.lastgroup, each[each.lastgroup]) for each in _tokens(notation)]
        self._tokens.append(("mark", "end"))
        self._tokens.reverse()

    def next(self) -> str:
        return self._tokens.pop()[1]

    def takes(self, *marks: str) -> str | None:
        """The next token if it is one of these, else None."""
        return self.next() if self._tokens[-1] in [("mark", mark) for mark in marks] else None

    def expect(self, mark: str) -> None:
        if (found := self.next()) != mark:
            raise ValueError(f"{found} in place of {mark}")

    def _all(self, kind: str) -> Iterator[str]:
        while self._tokens[-1][0] == kind:
            yield self.next()

    def described(self, value: Any) -> Any:
        """It with the description that follows; names in <> in that have their values."""
        about = " ".join(self._all("about"))
        shown = re.sub(r"<(\w+)>", lambda match: str(self.names[match[1]]), about)
        return {**schema_of(value), "description": shown} if about else value

    def union(self) -> Any:
        """A tuple of values alone, or a schema."""
        parts = [self._term()]
        while self.takes("|"):
            parts.append(self._term())
        if len(parts) == 1:
            return parts[0]
        if all(isinstance(part, tuple) for part in parts):
            return sum(parts, ())
        joined: list[Any] = []
        for part in parts:
            if isinstance(part, tuple) and joined and isinstance(joined[-1], tuple):
                joined[-1] += part
            else:
                joined += part["anyOf"] if [*part] == ["anyOf"] else [part]
        return {"anyOf": [schema_of(part) for part in joined]}

    def _term(self) -> Any:
        found = self._atom()
        return _or_empty(schema_of(found)) if self.takes("?") else found

    def _atom(self) -> Any:
        kind, word = self._tokens.pop()
        if kind == "value":
            return (word[1:-1],)
        if kind == "number":
            return (int(word),)
        if word == "(":
            return self._closed(self.union(), ")")
        if word == "[":
            each = self._closed(self.union(), "]")
            return self._narrowed({"type": "array", "items": schema_of(each), "minItems": 0})
        if word == "if":
            holds, first = self.names[self.next()], self._atom()
            self.expect("else")
            other = self._atom()
            return first if holds else other
        if word == "map":
            return {"type": "object", "additionalProperties": schema_of(self._atom())}
        if word == "{" or self.takes("{"):
            return self._narrowed(self._object("" if word == "{" else word))
        found = self.names.get(word)
        if word[0].isupper() and not isinstance(found, tuple):
            return {"$ref": f"#/components/schemas/{word}"}
        if found is None:
            raise ValueError(f"{word} is not defined")
        return self._narrowed(found) if isinstance(found, dict) else found

    def _closed(self, found: Any, mark: str) -> Any:
        self.expect(mark)
        return found

    def _narrowed(self, schema: Schema) -> Schema:
        """It with the range, pattern or exception that follows."""
        for span in self._all("range"):
            suffix = BOUNDS.get(schema["type"])
            keys = (f"min{suffix}", f"max{suffix}") if suffix else ("minimum", "maximum")
            ends = zip(keys, map(self._bound, span.split("..")))
            schema = {**schema, **{key: end for key, end in ends if end is not None}}
        for pattern in self._all("pattern"):
            schema = {**schema, "pattern": pattern[1:-1]}
        if self._tokens[-1] == ("name", "not"):
            self.next()
            schema = {**schema, "not": schema_of(self._atom())}
        return schema

    def _bound(self, text: str) -> float | None:
        if text.lstrip("-") in self.names:
            return -self.names[text[1:]] if text[0] == "-" else self.names[text]
        return (float(text) if "." in text else int(text)) if text else None

    def _object(self, further: str) -> Schema:
        fields: Schema = {}
        required: list[str] = []
        while not self.takes("}"):
            if self.takes("*"):
                spread = self.names[self.next()]
                if self.takes(":"):
                    fields |= dict.fromkeys(spread, schema_of(self.described(self.union())))
                else:
                    fields |= spread["properties"]
                    required += spread["required"]
                continue
            name, mark = self.next(), self.takes("?", "!")
            self.expect(":")
            fields[name] = schema_of(self.described(self.union()))
            required += [name] if mark == "!" or not (mark or further) else []
        kind = {"type": "object", "properties": fields, "required": required}
        return {**kind, "additionalProperties": FURTHER[further]}


def _tokens(notation: str) -> Iterator[Any]:
    """Each with a kind; blanks have none."""
    return (match for match in TOKEN.finditer(notation) if match.lastgroup)


def schema_of(value: Any) -> Schema:
    """Of these values, or a schema itself."""
    if isinstance(value, tuple):
        return {"type": "null"} if value == (None,) else {"enum": list(value)}
    return value


def _or_empty(schema: Schema) -> Schema:
    """It, or what is empty: false, too, but where a number is asked for."""
    kinds = [each.get("type") for each in (schema, *schema.get("anyOf", ()))]
    is_number = "integer" in kinds or "number" in kinds
    return {"anyOf": [schema, {"enum": [*EMPTY] if is_number else [*EMPTY, False]}]}
