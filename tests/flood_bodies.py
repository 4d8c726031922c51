"""Requests made to keep a server busy, to fill its memory or to break it, each with the statuses that are right."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

CHAT, TEXT, RESPONSE, OLLAMA = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/api/chat"
JSON = {"Content-Type": "application/json"}
HELLO = [{"role": "user", "content": "Hi"}]
ANSWERED, REFUSED = (200,), (400,)
EITHER = (200, 400)


class Hostile(NamedTuple):
    """One request; `statuses`: those that are right for it."""

    name: str
    path: str
    body: bytes
    statuses: tuple[int, ...] = EITHER
    headers: dict[str, str] = JSON


def hostile() -> Iterator[Hostile]:
    """All of them, each made when it is its turn: some are megabytes."""
    yield from _schemas()
    yield from _tools()
    yield from _raw_bodies()
    yield from _fields()
    yield from _histories()
    yield from _sizes()


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def chat(**fields: Any) -> bytes:
    return encoded({"messages": HELLO, "max_tokens": 2, **fields})


def _schemas() -> Iterator[Hostile]:
    """As the form of an answer, at each API, and as the parameters of a tool."""
    for name, schema in schemas():
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        yield Hostile(f"{name}, as a form", CHAT, chat(response_format=form))
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        yield Hostile(f"{name}, of a tool", CHAT, chat(tools=[tool]))
        ollama = {"messages": HELLO, "stream": False, "format": schema, "options": {"num_predict": 2}}
        yield Hostile(f"{name}, as a format", OLLAMA, encoded(ollama))


def schemas() -> Iterator[tuple[str, Any]]:
    yield "nested 90 deep", _nested(90)
    yield "nested 110 deep", _nested(110)
    yield "nested 400 deep", _nested(400)
    yield "50,000 properties", {"type": "object", "properties": {f"p{i}": {} for i in range(50_000)}}
    yield (
        "15,000 properties",
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(15_000)}},
    )
    yield "50,000 required", {"type": "object", "required": [f"p{i}" for i in range(50_000)]}
    yield "an enum of 100,000", {"enum": list(range(100_000))}
    yield (
        "a chain of 15,000 references",
        {
            "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(15_000)}
            | {"d15000": {"type": "null"}},
            "$ref": "#/$defs/d0",
        },
    )
    yield (
        "a web of references",
        {
            "$defs": {
                f"d{i}": {
                    "type": "object",
                    "properties": {f"p{j}": {"$ref": f"#/$defs/d{(i * 7 + j) % 300}"} for j in range(40)},
                }
                for i in range(300)
            },
            "$ref": "#/$defs/d0",
        },
    )
    yield (
        "cyclic references",
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    )
    yield "contains itself", {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
    yield (
        "a product of anyOf",
        {"allOf": [{"anyOf": [{"required": [f"k{i}{j}"]} for j in range(20)]} for i in range(20)]},
    )
    yield from _values()


def _values() -> Iterator[tuple[str, Any]]:
    """What is not large by its number of schemas."""
    yield "oneOf of 2,000", {"oneOf": [{"const": str(i)} for i in range(2000)]}
    yield (
        "patterns that explode",
        {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(30)]},
    )
    yield "one huge pattern", {"type": "string", "pattern": "(" + "a|" * 200_000 + "b)"}
    yield "a pattern of repetitions", {"type": "string", "pattern": "((a{1,1000}){1,1000}){1,1000}"}
    yield "nested groups", {"type": "string", "pattern": "(" * 20_000 + "a" + ")" * 20_000}
    yield "classes of unicode", {"type": "string", "pattern": r"^(\p{L}|\p{N}|[^\x00-\uffff]){1,500}$"}
    yield "500 key patterns", {"type": "object", "patternProperties": {f"^(a|b)*{i}": {} for i in range(500)}}
    yield (
        "keys of unicode",
        {
            "type": "object",
            "properties": {"\u202e\u0000\U0001f44d" * 50: {}, "": {}, "\n": {}},
            "required": [""],
        },
    )
    yield "a lone surrogate", {"type": "object", "properties": {"\ud800": {"const": "\udfff"}}}
    yield "a multiple of a prime", {"type": "integer", "multipleOf": 999_983}
    yield (
        "multiples that multiply",
        {"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949)]},
    )
    yield "huge bounds", {"type": "string", "minLength": 2**53, "maxLength": 2**53}
    yield "10^9 items", {"type": "array", "items": {"type": "integer"}, "minItems": 10**9}
    yield "huge integers", {"type": "integer", "minimum": -(10**300), "maximum": 10**300}
    yield "an integer of 4,000 digits", {"const": 10**4000}
    yield (
        "wrong types everywhere",
        {"type": 7, "properties": 5, "items": "x", "anyOf": {}, "$ref": [], "required": {"a": 1}, "enum": 3},
    )


def _nested(depth: int) -> Any:
    schema: Any = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _tools() -> Iterator[Hostile]:
    def tool(name: str, **function: Any) -> Any:
        return {"type": "function", "function": {"name": name, **function}}

    yield Hostile("128 tools", CHAT, chat(tools=[tool(f"t{i}", parameters=_nested(20)) for i in range(128)]))
    yield Hostile("10,000 tools", CHAT, chat(tools=[tool(f"t{i}") for i in range(10_000)]), REFUSED)
    slow = {"allOf": [{"type": "string", "pattern": f"^[ab]*a[ab]{{{i + 12}}}c$"} for i in range(5)]}
    yield Hostile(
        "60 tools that are slow to compile",
        CHAT,
        chat(
            tools=[
                tool(f"t{i}", parameters={"type": "object", "properties": {f"v{i}": slow}}) for i in range(60)
            ]
        ),
    )
    yield Hostile(
        "namespaces within namespaces",
        RESPONSE,
        encoded({"input": "Hi", "max_output_tokens": 2, "tools": _spaces(200)}),
    )
    yield Hostile(
        "100,000 tools of other kinds",
        RESPONSE,
        encoded(
            {"input": "Hi", "max_output_tokens": 2, "tools": [{"type": f"k{i}"} for i in range(100_000)]}
        ),
    )


def _spaces(depth: int) -> Any:
    tools: Any = [{"type": "function", "name": "f"}]
    for number in range(depth):
        tools = [{"type": "namespace", "name": f"n{number}", "tools": tools}]
    return tools


def _raw_bodies() -> Iterator[Hostile]:
    stream = {"Content-Type": "application/octet-stream"}
    yield Hostile("bytes as octet-stream", OLLAMA, b"\x00\xff" * 10_000, REFUSED, stream)
    yield Hostile("JSON as octet-stream", CHAT, chat(), ANSWERED, stream)
    yield Hostile("a body without a type", CHAT, chat(), ANSWERED, {})
    yield Hostile("no body", CHAT, b"", REFUSED)
    yield Hostile("another type", CHAT, chat(), (415,), {"Content-Type": "text/plain"})
    yield Hostile("a form", CHAT, chat(), (415,), {"Content-Type": "application/x-www-form-urlencoded"})
    yield Hostile("nested 100,000 deep", CHAT, b"[" * 100_000, REFUSED)
    yield Hostile("objects nested 50,000 deep", CHAT, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, REFUSED)
    yield Hostile(
        "NaN", CHAT, b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}', REFUSED
    )
    yield Hostile("a number of 100,000 digits", CHAT, b'{"seed": ' + b"9" * 100_000 + b"}", REFUSED)
    yield Hostile(
        "a number of 4,000 digits",
        CHAT,
        b'{"messages": [{"role":"user","content":"a"}], "max_tokens": 2, "seed": ' + b"9" * 4000 + b"}",
        ANSWERED,
    )
    yield Hostile(
        "duplicate keys",
        CHAT,
        b'{"messages": 1, '
        + b'"a": null, ' * 100_000
        + b'"max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}',
        ANSWERED,
    )
    yield Hostile("UTF-16", CHAT, chat().decode().encode("utf-16"), REFUSED)
    yield Hostile("4 MiB", CHAT, chat(user="a" * (4 << 20)), (413,))


def _fields() -> Iterator[Hostile]:
    yield Hostile("100,000 unknown fields", CHAT, chat(**{f"f{i}": 1 for i in range(100_000)}), REFUSED)
    yield Hostile(
        "100,000 unknown empty fields", CHAT, chat(**{f"f{i}": None for i in range(100_000)}), ANSWERED
    )
    yield Hostile("a field of 1 MB", CHAT, chat(**{"\u202e\r\n" * 300_000: 1}), REFUSED)
    yield Hostile("metadata nested 400 deep", CHAT, chat(metadata=_nested(400)), ANSWERED)
    yield Hostile("a user of 2 MB", CHAT, chat(user="a" * 2_000_000), ANSWERED)
    yield Hostile("stop_token_ids of 1,000,000", CHAT, chat(stop_token_ids=[1] * 1_000_000), REFUSED)
    yield Hostile("64 long stops", CHAT, chat(stop=["ab" * 10_000 + str(i) for i in range(64)]), ANSWERED)
    yield Hostile("100,000 stops", CHAT, chat(stop=[str(i) for i in range(100_000)]), REFUSED)
    yield Hostile(
        "logit_bias of 100,000", CHAT, chat(logit_bias={str(i): 1 for i in range(100_000)}), REFUSED
    )
    yield Hostile(
        "64 prompts of 32 answers",
        TEXT,
        encoded({"prompt": ["Hi"] * 64, "n": 32, "max_tokens": 1}),
        (200, 429),
    )
    yield Hostile("65 prompts", TEXT, encoded({"prompt": ["Hi"] * 65, "max_tokens": 1}), REFUSED)
    yield Hostile("33 answers", CHAT, chat(n=33), REFUSED)
    yield Hostile("ids of 1,000,000", TEXT, encoded({"prompt": [1] * 1_000_000, "max_tokens": 1}), REFUSED)
    yield Hostile(
        "options of 100,000",
        OLLAMA,
        encoded({"messages": HELLO, "options": {f"o{i}": 1 for i in range(100_000)}}),
        REFUSED,
    )


def _histories() -> Iterator[Hostile]:
    yield Hostile(
        "60,000 turns without text", CHAT, chat(messages=[{"role": "user", "content": None}] * 60_000)
    )
    yield Hostile(
        "200,000 empty parts", CHAT, chat(messages=[{"role": "user", "content": [{}] * 200_000}]), ANSWERED
    )
    yield Hostile(
        "1,000 system turns", CHAT, chat(messages=[{"role": "system", "content": "a"}] * 1000 + HELLO)
    )
    call = {"function": {"name": "f", "arguments": "{}"}}
    yield Hostile(
        "20,000 calls without ids",
        CHAT,
        chat(
            messages=[
                *HELLO,
                {"role": "assistant", "tool_calls": [call] * 20_000},
                *[{"role": "tool", "content": "a"}] * 20_000,
            ]
        ),
        REFUSED,
    )
    deep = "[" * 100_000
    yield Hostile(
        "arguments nested 100,000 deep",
        CHAT,
        chat(messages=[*HELLO, {"role": "assistant", "function_call": {"name": "f", "arguments": deep}}]),
        REFUSED,
    )
    unknown = {f"k{i}": 1 for i in range(50_000)}
    yield Hostile("a turn of 50,000 extras", CHAT, chat(messages=[{**HELLO[0], **unknown}]), ANSWERED)
    yield Hostile(
        "an input of 50,000 reasonings",
        RESPONSE,
        encoded({"input": [{"type": "reasoning"}] * 50_000}),
        REFUSED,
    )
    yield Hostile(
        "50,000 outputs without calls",
        RESPONSE,
        encoded({"input": [{"type": "function_call_output", "output": "a"}] * 50_000}),
        REFUSED,
    )


def _sizes() -> Iterator[Hostile]:
    yield Hostile(
        "2 MB of text", CHAT, chat(messages=[{"role": "user", "content": "a b " * 500_000}]), REFUSED
    )
    yield Hostile("1 MB of newlines", RESPONSE, encoded({"input": "\n" * 1_000_000}), REFUSED)
