"""The published description is true: schemathesis asks for all it allows and much that it forbids.

Against a fake backend, a seeded number of times. `make conformance` runs this file again, with many more examples, and
also against real processes (OPENSLED_API_URL).
"""

from __future__ import annotations

import os

import pytest
import schemathesis.openapi
from hypothesis import settings

from http_api.app import build_app
from http_api.effects import OFF
from http_api.openapi import description
from tests.fake_backend import USUAL, FakeBackend, call
from tests.openapi_cases import brief, checks, is_valid, relate
from tests.tiny_drafts import tiny_info

URL = os.environ.get("OPENSLED_API_URL", "")
EXAMPLES = int(os.environ.get("OPENSLED_API_EXAMPLES", "60"))
VOCABULARY = 2048  # of the tiny family

if URL:
    SCHEMA = schemathesis.openapi.from_url(f"{URL}/openapi.json")
else:
    SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", build_app(FakeBackend()))
UNGUIDED = schemathesis.openapi.from_asgi("/openapi.json", build_app(FakeBackend(capabilities=())))


def keep_to_the_description(case):
    if is_valid(case):
        case.body = relate(case.body, VOCABULARY)
    if URL:
        case.body = brief(case.body)
    case.validate_response(case.call(), checks=checks(accepts=not URL))


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES)
def test_the_api_keeps_to_its_description(case):
    keep_to_the_description(case)


@pytest.mark.long
@UNGUIDED.include(path="/v1/chat/completions").parametrize()
@settings(max_examples=EXAMPLES // 4)
def test_also_where_the_server_cannot_guide(case):
    keep_to_the_description(case)


def test_the_description_is_served_and_whole():
    backend = FakeBackend()
    document = call(backend, "/openapi.json", method="GET").json()
    assert document == description(backend.info) and document["openapi"] == "3.1.0"
    schemas = document["components"]["schemas"]
    asked = schemas["ChatRequest"]["properties"]
    assert set(asked) >= {*USUAL, *OFF, "messages", "model"}
    assert set(schemas["CompletionRequest"]["properties"]) >= {*OFF, "prompt", "echo"}
    assert all(
        "description" in field or "enum" in field for name, field in asked.items() if name != "messages"
    )


def test_the_description_tells_of_the_model_served():
    schemas = description(tiny_info(model_id="other", vocab_size=99))["components"]["schemas"]
    fields = schemas["ChatRequest"]["properties"]
    assert fields["model"]["anyOf"][0]["enum"] == ["other"]
    assert "98" in str(fields["stop_token_ids"]) and "99" in fields["logit_bias"]["description"]
