"""Random JSON schemas of the keywords that grammars hold, which often meet: intersections, references, keys."""

import random
from typing import Any

Schema = dict[str, Any]
PATTERNS = ("^x", "y$", "^[a-c]+$", "z", "^a{3,5}$", "[0-9]", "^(a|b)*$", "^(?!x)", r"\bfoo\b")
FORMATS = ("date", "uuid", "email", "ipv4", "time", "date-time", "duration", "hostname", "ipv6", "whim")
KEYS, KEY_PATTERNS = ("a", "b", "ab", "pct", "x"), ("^a", "b$", "^x$", "^pct$", "^c", "^[a-p]+$")


def document(seed: int) -> Schema:
    """An object with two such values and two definitions."""
    rng = random.Random(seed)
    return {
        "type": "object",
        "properties": {"k": _value(rng, 2), "m": _value(rng, 1)},
        "required": ["k"],
        "$defs": {"a": _value(rng, 1), "b": _value(rng, 0)},
    }


# What takes the compiler too long: such a tool is held less closely.
SLOW: tuple[Schema, ...] = (
    {"type": "integer", "multipleOf": 99_991},
    {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{length}}}"} for length in range(9)]},
    {"allOf": [{"type": "string", "pattern": f"^[ab]*a[ab]{{{length}}}c$"} for length in range(12, 17)]},
    {"type": "object", "patternProperties": {f"^k{number}": {"type": "integer"} for number in range(101)}},
)


def tools(seed: int) -> list[tuple[str, Schema]]:
    """Two tools by name with their parameters; of "slow" they are often such that it is held less closely."""
    rng = random.Random(seed)
    slow, quick = document(seed), document(seed + 1_000_000)
    if rng.random() < 0.5:
        slow["properties"]["s"] = rng.choice(SLOW)
        slow["required"] = ["k", "s"]
    return [("slow", slow), ("quick", quick)]


def _value(rng: random.Random, depth: int) -> Schema:
    flat = (_number, _string, _plain, _reference)
    make = rng.choice((*flat, *((_object, _array, _applied, _joined) if depth else ())))
    return make(rng, depth)


def _some(rng: random.Random, **choices: Any) -> Schema:
    """Each of these keywords with a chance of a third."""
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.35}


def _number(rng: random.Random, depth: int) -> Schema:
    ends, steps = (-20, -1.5, 0, 3, 9), (2, 5, 7, 0.5)
    bounds = _some(
        rng, minimum=ends, maximum=ends, exclusiveMinimum=ends, exclusiveMaximum=ends, multipleOf=steps
    )
    return {"type": rng.choice(("integer", "number")), **bounds}


def _string(rng: random.Random, depth: int) -> Schema:
    lengths = range(7)
    return {
        "type": "string",
        **_some(rng, pattern=PATTERNS, minLength=lengths, maxLength=lengths, format=FORMATS),
    }


def _plain(rng: random.Random, depth: int) -> Schema:
    values = ["a", "b", 1, 2, None, True, "xy", {"a": 1}]
    return rng.choice(
        (
            {},
            {"type": "boolean"},
            {"type": ["string", "null"]},
            {"const": [1, "a"]},
            {"enum": rng.sample(values, 3)},
        )
    )


def _reference(rng: random.Random, depth: int) -> Schema:
    return {"$ref": rng.choice(("#/$defs/a", "#/$defs/b", "#"))}


def _object(rng: random.Random, depth: int) -> Schema:
    properties = {key: _value(rng, depth - 1) for key in rng.sample(KEYS, rng.randrange(4))}
    patterns = {
        pattern: _value(rng, depth - 1) for pattern in rng.sample(KEY_PATTERNS, rng.choice((0, 0, 1, 2)))
    }
    counts = _some(rng, minProperties=(0, 1, 2), maxProperties=(0, 1, 4))
    free = _some(
        rng, additionalProperties=(False, True, _value(rng, depth - 1)), unevaluatedProperties=(False,)
    )
    required = [key for key in (*properties, "x") if rng.random() < 0.4]
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": patterns,
        "required": required,
        **counts,
        **free,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    first = {"prefixItems": [_value(rng, depth - 1)]} if rng.random() < 0.3 else {}
    counts = _some(rng, minItems=range(4), maxItems=range(4), uniqueItems=(True,))
    return {"type": "array", "items": _value(rng, depth - 1), **first, **counts}


def _applied(rng: random.Random, depth: int) -> Schema:
    return {
        rng.choice(("anyOf", "allOf", "oneOf")): [_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    }


def _joined(rng: random.Random, depth: int) -> Schema:
    return {**_value(rng, depth - 1), **_applied(rng, depth)}
