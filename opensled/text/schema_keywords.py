"""The keywords of JSON Schema that a grammar can hold, those it cannot, and the values that they may have.

All other keywords are annotations: they say nothing about what is valid.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
# As Python, Google's SDKs and hand-written tools spell them.
TYPE_WORDS = {
    "dict": "object",
    "map": "object",
    "list": "array",
    "tuple": "array",
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "none": "null",
}
# Others are annotations too by the standard, but say something about the value, so they are named.
FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
# Keywords whose value is a schema, a list of them, or an object of them.
ONE = ("items", "additionalProperties")
LISTS = ("anyOf", "allOf", "prefixItems")
MAPS = ("properties", "patternProperties")
APPLICATORS = ("allOf", "anyOf", "oneOf", "$ref")
# Constraints that no grammar here holds.
BEYOND = frozenset(
    (
        *(
            "not",
            "if",
            "then",
            "else",
            "contains",
            "minContains",
            "maxContains",
            "uniqueItems",
            "propertyNames",
        ),
        *(
            "dependencies",
            "dependentRequired",
            "dependentSchemas",
            "unevaluatedProperties",
            "unevaluatedItems",
        ),
        *("$dynamicRef", "$recursiveRef"),
    )
)
COSTLY = frozenset(("pattern", "format", "multipleOf", "patternProperties"))  # to compile
WITHOUT_EFFECT = {"uniqueItems": (False,), "minContains": (0,), "unevaluatedProperties": (True,)}

# What the compiler's regular expressions lack.
FOREIGN_ESCAPE = re.compile(r"\\(?![dDwWsSnrtfvxupPa]|[^A-Za-z0-9<>])|\\u[dD][89a-fA-F]")
FOREIGN_GROUP = re.compile(r"\(\?(?:[=!>(]|<[=!]|P=)|\([^()]*[\^$][^()]*\)[*+?{]")
GROUP_START = re.compile(r"\(\?(?::|P?<[^>]*>)")
EMPTY_CLASS = re.compile(r"\[\^?\]")
# Behind that: a class without an end, a brace that is no repetition, a repetition of nothing.
BROKEN = re.compile(r"\[|\{(?!\d+(?:,\d*)?\})|(?:^|\|)[*+?{]|\([*+{]")
ESCAPED_LONG = re.compile(r"\\.[\w<]{0,2}")
ESCAPED, CLASS = re.compile(r"\\[pPux]\{[^}]*\}|\\."), re.compile(r"\[[^\]]+\]")
# Chosen: what is longer, or repeats more, is not matched with keys here, for that may take long.
MAX_MATCHED, MAX_KEYS = 200, 50
QUANTIFIER = re.compile(r"[*+?{]")
MOST = 2**53  # of a count


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 on, also one written 5.0."""
    return is_finite(value) and 0 <= value <= MOST and value == int(value)


def is_finite(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_type(value: object) -> bool:
    kinds = value if isinstance(value, list) else [value]
    return bool(kinds) and all(isinstance(kind, str) and kind in TYPES for kind in kinds)


def is_pattern(value: object) -> bool:
    """Whether it is a regular expression without look-around, back references and word boundaries."""
    if not isinstance(value, str) or any(
        FOREIGN_ESCAPE.match(found) for found in ESCAPED_LONG.findall(value)
    ):
        return False
    plain = ESCAPED.sub("e", value)
    if EMPTY_CLASS.search(plain):
        return False
    plain = CLASS.sub("c", plain)
    if plain.count("(") != plain.count(")") or FOREIGN_GROUP.search(plain) or BROKEN.search(plain):
        return False
    plain = GROUP_START.sub("(", plain)
    return _begins(plain, "^", "(") and _begins(plain[::-1], "$", ")")


def _begins(plain: str, anchor: str, opening: str) -> bool:
    """Whether nothing stands before any `anchor`, read from its end of the text; another anchor is something, too."""
    first, outer = True, [True]  # whether nothing stands before this place, and before the groups around it
    for sign in plain:
        if sign == opening:
            outer.append(first)
        elif sign == "|":
            first = outer[-1]
        elif sign == anchor and not first:
            return False
        else:
            if sign in "()" and len(outer) > 1:
                outer.pop()
            first = False
    return True


# Keywords that are kept as they are, if their value is one of those.
VALUES: Mapping[str, Callable[[Any], bool]] = {
    "type": is_type,
    "enum": lambda value: isinstance(value, list),
    "const": lambda value: True,
    "required": is_strings,
    "pattern": is_pattern,
    "format": lambda value: value in FORMATS,
    "multipleOf": lambda value: is_finite(value) and value > 0,
    **dict.fromkeys(
        ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), is_count
    ),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), is_finite),
}


def may_match(pattern: str, keys: Sequence[str]) -> bool:
    """Whether a pattern of keys matches one of `keys`; True also where that would take long to find out."""
    repeats = len(QUANTIFIER.findall(pattern))
    if repeats > 1 or ")" in pattern or len(pattern) > MAX_MATCHED or len(keys) > MAX_KEYS:
        return bool(keys)
    try:
        found = re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return bool(keys)
    return any(len(key) > MAX_MATCHED or found.search(key) for key in keys)


def json_kind(value: object) -> str:
    """The type of a JSON value."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def json_type(value: Any) -> Any:
    """One type or several in the words of JSON Schema; what is none stays as it is."""
    if isinstance(value, list):
        return [json_type(each) for each in value]
    word = value.lower() if isinstance(value, str) else ""
    return TYPE_WORDS.get(word, word if word in TYPES else value)


def old_spelling(node: dict[str, Any]) -> dict[str, Any]:
    """A schema of earlier drafts as the one of 2020 has it, without keywords that are null."""
    new = {key: value for key, value in node.items() if value is not None or key in ("const", "default")}
    for bound in ("minimum", "maximum"):
        exclusive = "exclusive" + bound.capitalize()
        if new.get(exclusive) is False:
            del new[exclusive]
        elif new.get(exclusive) is True:
            del new[exclusive]
            new |= {exclusive: new.pop(bound)} if bound in new else {}
    if "type" in new:
        new["type"] = json_type(new["type"])
    if isinstance(new.get("items"), list):
        new["prefixItems"] = new.pop("items")
        new |= {"items": new["additionalItems"]} if "additionalItems" in new else {}
    return new


def target_of(root: Any, pointer: object) -> Any:
    """The schema in `root` that a reference points to; None if it does not exist, or is no schema."""
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        return None
    found = root
    for part in pointer.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict | bool) else None
