"""Requests of POST /v1/responses, and what their answers conform to."""

import json
from functools import cache

import jsonschema
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from http_api.openapi import description
from tests.fake_backend import FakeBackend, call

PATH = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}}
LAMP = {"type": "function", "name": "lamp", "description": "a lamp", "parameters": SCHEMA, "strict": True}
CLOCK = {"type": "function", "name": "clock"}
FORM = {"type": "json_schema", "name": "a", "schema": SCHEMA}
LOGPROBS = "message.output_text.logprobs"


def ask(backend, value="Hi", **fields):
    body = json.dumps({"model": "tiny", "input": value, **fields}).encode()
    return call(backend, PATH, content=body)


@cache
def readers(name):
    """The device's own description of a kind of object, and the official client's type."""
    document = description(FakeBackend().info)
    schema = {**document["components"]["schemas"][name], "components": document["components"]}
    kind = Response if name == "Response" else ResponseStreamEvent
    return jsonschema.Draft202012Validator(schema), TypeAdapter(kind)


def conforms(value, name):
    described, typed = readers(name)
    described.validate(value)
    typed.validate_python(value)
