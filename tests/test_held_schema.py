"""What grammars hold of JSON schemas: the rest is named, what is held can always end, and keeps to the schema."""

import contextlib
import json
import random
import time

import jsonschema
import pytest

from opensled.core.errors import InvalidRequest, RequestError, Unsupported
from opensled.core.messages import Guide, Tool
from opensled.text.held_schema import MAX_NODES, reduce
from opensled.text.schema_keywords import is_pattern
from tests.guiding import EOS, completes, decode, ids, may_follow, schema_guide, tiny
from tests.random_schemas import document, tools

LIMIT = 3000  # tokens in which a walk must find an end
# The letters that the patterns of tests/random_schemas.py ask for, and what closes values.
LETTERS = [ids(letter)[0] for letter in 'abcdxyz0159-:.@TZPD,n"']
CLOSERS = [ids(letter)[0] for letter in '"}]']

LEFT_OUT = [
    ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
    ({"type": "array", "uniqueItems": False}, []),
    ({"type": "object", "propertyNames": {"pattern": "a"}}, ["propertyNames"]),
    ({"type": "array", "contains": {"const": "a"}, "minContains": 2}, ["contains", "minContains"]),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {}}, ["if", "then", "else"]),
    ({"not": {"type": "null"}}, ["not"]),
    ({"dependentRequired": {"a": ["b"]}, "dependencies": {}, "dependentSchemas": {}}, 3),
    ({"type": "object", "unevaluatedProperties": False}, ["unevaluatedProperties"]),
    ({"properties": {"a": {}}, "unevaluatedProperties": False}, []),
    ({"type": "string", "pattern": "^(?!x).*$"}, ["pattern"]),
    ({"type": "string", "format": "color"}, ["format"]),
    ({"type": "integer", "format": "int32"}, []),
    ({"type": "object", "minProperties": 2}, ["minProperties"]),
    ({"properties": {"a": {}, "b": {}}, "minProperties": 1, "maxProperties": 1}, ["minProperties", "maxProperties"]),
    ({"properties": {"a": {}}, "required": ["a"], "minProperties": 1, "maxProperties": 3}, []),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf"]),
    ({"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/t"}], "$defs": {"t": {"type": "string"}}}, []),
    ({"$ref": "https://example.org/x.json"}, ["$ref"]),
    ({"$ref": "#/$defs/none"}, ["$ref"]),
    ({"$dynamicRef": "#a"}, ["$dynamicRef"]),
    ({"type": "any"}, ["type"]),
    ({"type": "string", "minLength": "1", "maxLength": 5.0}, ["minLength"]),
    ({"properties": None, "required": None, "enum": None, "type": None}, []),
    ({"items": 5, "anyOf": [], "properties": []}, ["items", "anyOf", "properties"]),
    ({"$schema": "https://schemas.invalid/own", "nullable": True, "x-y": 1, "example": {}, "readOnly": 1}, []),
    ({"properties": {"p": {}}, "patternProperties": {"^p$": {"type": "integer"}, "^q": {}}}, ["patternProperties.^p$"]),
    ({"allOf": [{"if": {}}, {"properties": {"a": {"not": {}}}}]}, ["allOf[0].if", "allOf[1].properties.a.not"]),
    ({"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"contains": {}}}}, ["$defs.b.contains"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "paths"), LEFT_OUT, ids=str)
def test_what_no_grammar_holds_is_left_out_by_its_path_and_compiles_without(schema, paths):
    found = reduce(schema, "x")
    assert len(found.left_out) == paths if isinstance(paths, int) else list(found.left_out) == paths
    tool = Tool(
        "save",
        "",
        json.dumps({"type": "object", "properties": {"value": schema}, "$defs": schema.get("$defs", {})}),
    )
    tiny().start(Guide(tools=(tool,), tool_choice="required"), ())


@pytest.mark.parametrize(("schema", "paths"), [case for case in LEFT_OUT if case[1]], ids=str)
def test_with_strict_it_is_refused_by_its_name(schema, paths):
    name = paths[0] if isinstance(paths, list) else "dependentRequired"
    with pytest.raises(Unsupported) as refusal:
        tiny().start(Guide(json_schema=json.dumps(schema), strict=True), ())
    assert name in str(refusal.value) and "strict" in str(refusal.value)


CLOSED = [
    ({"properties": {"a": {}}}, '{"a": 1}', '{"a": 1, "b"'),
    ({"type": "object", "properties": {}}, "{}", '{"b"'),
    ({"type": ["object", "null"], "properties": {"a": {}}}, "{}", '{"b"'),
    ({"properties": {"a": {}}, "required": ["b"]}, '{"b": 1}', '{"c"'),
    ({"allOf": [{"properties": {"a": {}}}, {"$ref": "#/$defs/b"}], "$defs": {"b": {"properties": {"b": {}}}}},
     '{"a": 1, "b": 2}', '{"c"'),
    ({"properties": {"k": {}}, "anyOf": [{"required": ["k"]}, {"properties": {"a": {}}}]}, '{"k": 1}', '{"c"'),
    ({"type": "object", "oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]},
     '{"b": 1}', '{"a": 1, "b"'),
    ({"patternProperties": {"^a": {}}}, '{"ab": 1}', '{"b"'),
    ({"patternProperties": {"^a$": {}}, "required": ["a"], "additionalProperties": False}, '{"a": 1}', '{"b"'),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), CLOSED, ids=str)
def test_an_object_that_names_its_keys_has_no_others(schema, good, bad):
    schema = {"type": "object", **schema}
    assert completes(tiny(), schema_guide(schema), good)
    constraint = tiny().start(schema_guide(schema), ())
    with pytest.raises(Exception, match="stuck"):
        constraint.commit(ids(bad))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        {"type": "object", "patternProperties": {"^(?!a)": {}}, "additionalProperties": False},
        {"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}},
    ],
    ids=str,
)
def test_an_object_that_is_open_by_its_schema_stays_open(schema):
    assert completes(tiny(), schema_guide(schema), '{"b": 1}')


def test_a_tool_that_cannot_be_compiled_takes_no_closeness_from_another():
    """Regular expressions that take the compiler too long: only their tool is held less closely."""
    slow = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(9)]}
    tools = tuple(
        Tool(name, "", json.dumps({"type": "object", "properties": {"v": value}, "required": ["v"]}))
        for name, value in (("slow", slow), ("good", {"type": "integer"}))
    )
    guide = Guide(tools=tools, tool_choice="required")
    assert tiny().start(guide, ()).coarse_tools == ("slow",)
    assert completes(tiny(), guide, '{"name": "slow", "arguments": {"v": "q"}}')
    assert completes(tiny(), guide, '{"name": "good", "arguments": {"v": 5}}')
    with pytest.raises(AssertionError):
        assert completes(tiny(), guide, '{"name": "good", "arguments": {"v": "q"}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"},
        {"properties": {"a": {"type": "array", "items": {"$ref": "#"}, "minItems": 1}}, "required": ["a"]},
    ],
    ids=str,
)
def test_a_schema_that_needs_itself_without_an_end_is_refused(schema):
    with pytest.raises(InvalidRequest):
        tiny().start(schema_guide({"type": "object", **schema}), ())


def test_an_endless_property_is_left_away():
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/a"}, "b": {}},
        "$defs": {"a": {"$ref": "#/$defs/a"}},
    }
    assert completes(tiny(), schema_guide(schema), '{"b": 1}')
    assert "a" not in {
        name for name, each in reduce(schema, "x").schema["properties"].items() if each is not False
    }


@pytest.mark.parametrize(
    ("pattern", "good"),
    [
        (r"^(?!x).*$", False), (r"(?<=a)b", False), (r"\bfoo\b", False), (r"^(a)\1$", False), (r"\uD83D", False),
        ("[^]", False), ("a^b", False), ("a$b", False), (r"\cA", False), (r"\Z", False), (r"\j", False), ("[", False),
        ("(a", False), ("{foo}", False), ("*a", False), (r"\p{L}+", True), (r"\u0041", True), (r"\/path", True),
        (r"[\w-]+", True), (r"a\$b", True), ("[$^]x", True), (r"^\\b$", True), ("^(?:a|^b)c$", False), ("a{2,}", True),
        (r"^\d{1,3}(\.\d+)?$", True), (r"^[^\s@]+@[^\s@]+$", True), ("^$|^a", True),
        ("(^a$)|(?:^b$)", True), ("^(?:a|b$)", True), ("(?<n>^a)", True), ("a(^b)?", False), ("(a$)b", False),
        ("(^a)?b", False),
    ],
)  # fmt: skip
def test_patterns_that_the_compiler_lacks_are_known_without_it(pattern, good):
    assert is_pattern(pattern) is good
    guide = Guide(json_schema=json.dumps({"type": "string", "pattern": pattern}))
    tiny().start(guide, ())


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{}] * MAX_NODES},
        {
            "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i - 1}"} for i in range(MAX_NODES)},
            "$ref": "#/$defs/d9999",
        },
        {"oneOf": [{"enum": list(range(3000))}] * 40},
        {"properties": {"a" * 99: {}}, "patternProperties": {f"(a+)+{i}$": {} for i in range(100)}},
        {"allOf": [{"properties": {"a": {}}, "anyOf": [{"$ref": "#"}] * 50}] * 300},
    ],
    ids=lambda schema: str(schema)[:60],
)
def test_a_schema_made_to_be_slow_is_read_or_refused_soon(schema):
    started = time.process_time()
    with contextlib.suppress(InvalidRequest):
        reduce(schema, "x")
    assert time.process_time() - started < 3


def walked_to_its_end(guide: Guide, rng: random.Random, free: int) -> tuple[str, tuple[str, ...]] | None:
    """A random answer, which must end within `LIMIT`, and the tools held less closely; None: the guide is refused."""
    try:
        constraint = tiny().start(guide, ())
    except RequestError:
        return None
    answer: list[int] = []
    while len(answer) < LIMIT:
        choices = may_follow(constraint)
        ordinary = sorted(choices - {EOS})
        if EOS in choices and (len(answer) >= free or not ordinary):
            return decode(answer), constraint.coarse_tools
        closing = 0.7 if len(answer) < LIMIT // 4 else 0.95  # lists of at least three of itself grow else
        liked = [token for token in (CLOSERS if rng.random() < closing else LETTERS) if token in choices]
        answer.append(rng.choice(liked if liked and len(answer) >= free else ordinary))
        constraint.commit(answer[-1:])
    raise AssertionError(f"no end after {LIMIT} tokens: {decode(answer)[-200:]!r}")


def fulfils(schema: dict, value: object) -> None:
    jsonschema.Draft202012Validator(reduce(schema, "x").schema).validate(value)


@pytest.mark.parametrize("seeds", [range(50), pytest.param(range(50, 1050), marks=pytest.mark.long)], ids=str)
def test_every_walk_over_the_masks_of_an_accepted_schema_ends_in_what_it_holds(seeds):
    accepted = 0
    for seed in seeds:
        schema, rng = document(seed), random.Random(seed)
        for free in (0, 6, 20):
            found = walked_to_its_end(schema_guide(schema), rng, free)
            if found is None:
                break
            fulfils(schema, json.loads(found[0]))
            accepted += free == 0
    assert accepted > len(seeds) / 2


@pytest.mark.parametrize("seeds", [range(33), pytest.param(range(33, 700), marks=pytest.mark.long)], ids=str)
def test_every_call_of_any_tools_ends_and_fulfils_its_schema_if_that_is_held(seeds):
    coarse = whole = 0
    for seed in seeds:
        schemas, rng = dict(tools(seed)), random.Random(seed)
        offered = tuple(Tool(name, "", json.dumps(schema)) for name, schema in schemas.items())
        for function in ("", *schemas):
            guide = Guide(tools=offered, tool_choice="required", function=function)
            found = walked_to_its_end(guide, rng, rng.choice((0, 6, 20)))
            assert found is not None, "a tool without strict is never refused"
            call = json.loads(found[0])
            name = call["name"]
            assert name in schemas and function in ("", name) and isinstance(call["arguments"], dict)
            if name in found[1]:
                coarse += 1
            else:
                fulfils(schemas[name], call["arguments"])
                whole += 1
    assert coarse > len(seeds) / 2 and whole > len(seeds) / 2
