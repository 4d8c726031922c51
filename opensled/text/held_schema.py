"""What a grammar holds of a JSON schema, and what it leaves out.

The server compiles what is held (verify_server/text/tool_grammar.py); the API names what is not. So both must find the
same, and without the compiler, which devices do not have.

An object that names its properties and not `additionalProperties` is closed: a model invents keys where it may.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from opensled.core.errors import InvalidRequest
from opensled.text.schema_ends import without_endless
from opensled.text.schema_keywords import (
    APPLICATORS,
    BEYOND,
    COSTLY,
    LISTS,
    MAPS,
    ONE,
    VALUES,
    WITHOUT_EFFECT,
    is_pattern,
    may_match,
    old_spelling,
    target_of,
)
from opensled.text.schema_unions import are_apart, names_of

Node = dict[str, Any]
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
ONE_KEY = re.compile(r"\^[A-Za-z0-9_-]+\$")  # a pattern that only one key matches
MAX_DEPTH = 100  # of a schema; the compiler reads 127 levels of JSON
MAX_NODES = 20_000  # schemas within a schema; the compiler takes seconds for so many. Chosen


@dataclass(frozen=True)
class Held:
    """`schema` holds as much as a grammar can; `left_out`: what it does not hold, by path."""

    schema: Node
    left_out: dict[str, Any]


def reduce(schema: Node, field: str, coarse: bool = False) -> Held:
    """What a grammar holds of this schema; `coarse`: without what takes the compiler longest.

    Raises InvalidRequest for `field` if it is too large, or nested too deeply.
    """
    return _Walk(schema, field, BEYOND | COSTLY if coarse else BEYOND).whole()


def beyond(path: str, value: object) -> str:
    """The words of an error for what `strict` asks for and is not held."""
    return f"a grammar cannot hold {path[-120:]} ({str(value)[:80]}): leave it out, or leave strict out"


class _Walk:
    """Through one schema: what it refers to goes into its `$defs`, by number."""

    def __init__(self, root: Node, field: str, beyond: frozenset[str]) -> None:
        self._root, self._field, self._beyond = root, field, beyond
        self.target = partial(target_of, root)
        self._left_out: dict[str, Any] = {}
        self._numbers: dict[tuple[str, bool], str] = {}
        self._waiting = deque[tuple[str, bool]]()
        self._nodes = 0

    def whole(self) -> Held:
        defs: Node = {}
        top = self._node(self._root, "", False, 0)
        while self._waiting:
            pointer, joined = self._waiting.popleft()
            path = unquote(pointer[2:]).replace("/", ".")
            defs[self._numbers[pointer, joined]] = self._node(self.target(pointer), path, joined, 0)
        ending = without_endless({**top, **({"$defs": defs} if defs else {})})
        if ending is False:
            raise InvalidRequest(
                f"no answer can fulfil {self._field}: it contains itself without an end", self._field
            )
        return Held(ending, self._left_out)

    def _leave_out(self, path: str, keyword: str, value: object) -> None:
        self._left_out[_join_path(path, keyword)] = value

    def _node(self, node: Any, path: str, joined: bool, depth: int) -> Any:
        """One schema; `joined`: a value must match another one as well, so no object may be closed by itself."""
        self._nodes += 1
        if depth > MAX_DEPTH:
            raise InvalidRequest(
                f"{self._field} is nested deeper than {MAX_DEPTH} levels; make it flatter", self._field
            )
        if self._nodes > MAX_NODES:
            raise InvalidRequest(
                f"{self._field} has more than {MAX_NODES} schemas in it; make it simpler", self._field
            )
        if not isinstance(node, dict):
            return node if isinstance(node, bool) else True
        node = old_spelling(node)
        kept = dict(self._values(node, path))
        branches = joined or self._joins(node)
        for key in ONE:
            if isinstance(node.get(key), dict | bool):
                kept[key] = self._node(node[key], _join_path(path, key), joined, depth + 1)
        for key in MAPS:
            if isinstance(node.get(key), dict) and key not in self._beyond:
                kept[key] = self._map(node, key, _join_path(path, key), joined, depth + 1)
        for key in LISTS:
            if isinstance(node.get(key), list) and node[key]:
                inner = joined if key == "prefixItems" else branches
                kept[key] = self._list(node[key], _join_path(path, key), inner, depth + 1)
        self._one_of(node, kept, path, branches, depth)
        self._reference(node, kept, path, branches)
        return self._finish(node, kept, path, joined)

    def _values(self, node: Node, path: str) -> Iterator[tuple[str, Any]]:
        """The keywords without schemas in them that are held."""
        for key, value in node.items():
            if key in self._beyond:
                if value not in WITHOUT_EFFECT.get(key, ()) and not self._closes(node, key):
                    self._leave_out(path, key, value)
            elif key in VALUES:
                if VALUES[key](value):
                    yield key, value if key not in COUNTS else int(value)
                elif not isinstance(value, bool) and not (key == "format" and _no_text(node)):
                    self._leave_out(path, key, value)
            elif _is_misplaced(key, value):
                self._leave_out(path, key, value)

    def _closes(self, node: Node, key: str) -> bool:
        """Whether this keyword asks for what is done here by itself."""
        closing = key == "unevaluatedProperties" and node[key] is False
        return closing and "properties" in node and "additionalProperties" not in node

    def _joins(self, node: Node) -> bool:
        """Whether a value must match several schemas at once."""
        applied = [key for key in APPLICATORS if key in node]
        several = len(applied) > 1 or len(node.get("allOf") or ()) > 1
        return bool(applied) and (
            several or any(key in node for key in (*MAPS, *ONE, "prefixItems", "required"))
        )

    def _map(self, node: Node, key: str, path: str, joined: bool, depth: int) -> Node:
        kept: Node = {}
        named = _keys(node)
        joined_here = joined or any(each in node for each in APPLICATORS)
        for name, value in node[key].items():
            # A pattern that also matches a property leads the compiler into a key without a way out.
            if key == "patternProperties" and (joined_here or not is_pattern(name) or may_match(name, named)):
                self._leave_out(path, name, value)
            else:
                kept[name] = self._node(value, _join_path(path, name), joined, depth)
        return kept

    def _list(self, schemas: list[Any], path: str, joined: bool, depth: int) -> list[Any]:
        return [self._node(each, f"{path}[{index}]", joined, depth) for index, each in enumerate(schemas)]

    def _one_of(self, node: Node, kept: Node, path: str, joined: bool, depth: int) -> None:
        """`oneOf` is held as `anyOf`: the same where no value can match two of them, else it is named."""
        options = node.get("oneOf")
        if not isinstance(options, list) or not options:
            return
        if not are_apart(options, self.target):
            self._leave_out(path, "oneOf", "values may match two of its schemas")
        found = self._list(options, _join_path(path, "oneOf"), joined or "anyOf" in kept, depth + 1)
        if "anyOf" in kept:
            kept["allOf"] = [*kept.get("allOf", ()), {"anyOf": found}]
        else:
            kept["anyOf"] = found

    def _reference(self, node: Node, kept: Node, path: str, joined: bool) -> None:
        pointer = node.get("$ref")
        if pointer is None:
            return
        if self.target(pointer) is None:
            self._leave_out(path, "$ref", pointer)
            return
        key = (pointer, joined)
        if key not in self._numbers:
            self._numbers[key] = f"r{len(self._numbers)}"
            self._waiting.append(key)
        kept["$ref"] = f"#/$defs/{self._numbers[key]}"

    def _finish(self, node: Node, kept: Node, path: str, joined: bool) -> Node:
        """Without what says nothing, with objects closed."""
        if "allOf" in kept:
            kept["allOf"] = [each for each in kept["allOf"] if each not in (True, {})]
            if not kept["allOf"]:
                del kept["allOf"]
        if self._loses_keys(node, kept):
            kept.pop("additionalProperties", None)
        elif not joined and "additionalProperties" not in node and "object" in kept.get("type", "object"):
            self._close(node, kept)
        self._count_keys(kept, path)
        return kept

    def _loses_keys(self, node: Node, kept: Node) -> bool:
        """Whether patterns of keys are left out, so that the object must stay open; a single key is named instead."""
        patterns = node.get("patternProperties")
        left = set(patterns if isinstance(patterns, dict) else ()) - kept.get("patternProperties", {}).keys()
        single = {pattern for pattern in left if ONE_KEY.fullmatch(pattern)}
        if single:
            keys = dict.fromkeys((pattern[1:-1] for pattern in sorted(single)), True)
            kept["properties"] = {**keys, **kept.get("properties", {})}
        return bool(left - single)

    def _close(self, node: Node, kept: Node) -> None:
        """Leave an object only the keys that are named; what it merely refers to or may be closes itself."""
        applies = any(key in node for key in APPLICATORS)
        names = None if applies and not self._joins(node) else names_of(node, self.target)
        if names is not None:
            kept["properties"] = {**dict.fromkeys(names, True), **kept.get("properties", {})}
            kept["additionalProperties"] = False

    def _count_keys(self, kept: Node, path: str) -> None:
        """Bounds of the number of keys are held where `required` or `properties` hold them, and for free keys."""
        properties, required = kept.get("properties", {}), set(kept.get("required", ()))
        least, most = kept.get("minProperties", 0), kept.get("maxProperties")
        exact = properties.keys() <= required
        if least <= len(required):
            kept.pop("minProperties", None)
        elif least > 1 or not exact:
            self._leave_out(path, "minProperties", least)
            del kept["minProperties"]
        if most is not None and not exact:
            if kept.get("additionalProperties") is not False or most < len(properties):
                self._leave_out(path, "maxProperties", most)
            del kept["maxProperties"]


def _keys(node: Node) -> list[str]:
    """The keys that an object names by itself."""
    properties, required = node.get("properties"), node.get("required")
    found = [
        *(properties if isinstance(properties, dict) else ()),
        *(required if isinstance(required, list) else ()),
    ]
    return [key for key in found if isinstance(key, str)]


def _no_text(node: Node) -> bool:
    """Whether its values are no strings, so that a format says something else (OpenAPI's int32)."""
    return "type" in node and "string" not in node["type"]


def _is_misplaced(key: str, value: object) -> bool:
    """Whether a keyword that holds schemas holds something else."""
    if key in ONE:
        return not isinstance(value, dict | bool)
    if key in MAPS:
        return not isinstance(value, dict)
    return key in (*LISTS, "oneOf") and not (isinstance(value, list) and value)


def _join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
