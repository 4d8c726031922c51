"""JSON schemas made of a fuzzer's decisions: known keywords with any values."""

from typing import Any

from tests.fuzz.choices import Choices

KEYWORDS: dict[str, tuple[Any, ...]] = {
    "type": ("object", "array", "string", "integer", "number", "boolean", "null", ["string", "null"], "whim"),
    "enum": ([1, "a"], [], ["a"] * 60, [None, True, {"a": 1}]),
    "const": (1, "a", [1], "\ud800"),
    "pattern": ("^a+$", "(a|b){1,5}", "[", "a{3,2}", "(?=a)", "\\d+"),
    "format": ("date", "uuid", "email", "whim"),
    "multipleOf": (1, 7, 0.5, 0, -1),
    "required": (["a"], ["b", "b"], "a"),
    "$ref": ("#", "#/$defs/a", "#/nowhere", "http://a/b"),
    "additionalProperties": (False, True, {"type": "string"}),
    "patternProperties": ({"^a": {}}, {"^a$": {"type": "null"}, "b": False}, {"[": {}}, []),
    "uniqueItems": (True, False),
    "unevaluatedProperties": (False, True),
    "not": ({}, {"type": "null"}),
    "$defs": ({"a": {"$ref": "#/$defs/a"}}, {"a": {"$ref": "#"}}, {"a": {"anyOf": [{"$ref": "#"}, {}]}}, []),
    "items": ([{}, {"type": "null"}], {}, False, 5),
    "exclusiveMinimum": (True, False, 3),
    "properties": ([], None, {"": {}, "\n\u202e": True}),
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength")
BOUNDS += ("minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = (0, 1, 2, 3, 10, -1, 0.5, 1e308, "1", None)


def schema(choose: Choices, depth: int = 4) -> Any:
    """A JSON schema that is cheap to compile, or refused; nested at most so deeply."""
    made: dict[str, Any] = {}
    for _ in range(1 + choose.byte() % 3):
        kind = choose.byte() % 4
        if kind == 0:
            made[choose.pick(BOUNDS)] = choose.pick(NUMBERS)
        elif kind == 1 and depth:
            made |= _nested(choose, depth - 1)
        else:
            keyword = choose.pick(sorted(KEYWORDS))
            made[keyword] = choose.pick(KEYWORDS[keyword])
    return made


def _nested(choose: Choices, depth: int) -> dict[str, Any]:
    kind = choose.byte() % 4
    if kind == 0:
        return {"type": "object", "properties": {name: schema(choose, depth) for name in "ab"}}
    if kind == 1:
        return {"type": "array", "items": schema(choose, depth)}
    if kind == 2:
        word = choose.pick(("anyOf", "oneOf", "allOf"))
        return {word: [schema(choose, depth) for _ in range(choose.byte() % 3)]}
    return {"$defs": {"a": schema(choose, depth)}}
