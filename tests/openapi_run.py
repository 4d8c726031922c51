"""The published description is true: schemathesis asks for all it allows and much that it forbids.

`pytest tests/openapi_run.py`: against a fake backend, a seeded number of times, as tests/test_openapi.py runs it.
`make conformance` runs it again, with many more examples, and also against real processes (OPENSLED_API_URL).
"""

import os

import pytest
import schemathesis.openapi
from hypothesis import settings

from http_api.app import build_app
from tests.fake_backend import FakeBackend
from tests.openapi_cases import brief, checks, is_valid, relate

URL = os.environ.get("OPENSLED_API_URL", "")
EXAMPLES = int(os.environ.get("OPENSLED_API_EXAMPLES", "20"))
COVERS = "OPENSLED_API_EXAMPLES" in os.environ  # thousands of requests at the borders of the schemas: minutes
VOCABULARY = 2048  # of the tiny family

if URL:
    SCHEMA = schemathesis.openapi.from_url(f"{URL}/openapi.json")
else:
    SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", build_app(FakeBackend()))
UNGUIDED = schemathesis.openapi.from_asgi("/openapi.json", build_app(FakeBackend(capabilities=())))
for each in (SCHEMA, UNGUIDED):
    each.config.phases.coverage.enabled = COVERS


def keep_to_the_description(case):
    if is_valid(case):
        case.body = relate(case.body, VOCABULARY)
    if URL:
        case.body = brief(case.body)
    case.validate_response(case.call(), checks=checks(case, accepts=not URL))


@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES)
def test_the_api_keeps_to_its_description(case):
    keep_to_the_description(case)


@pytest.mark.long
@UNGUIDED.include(path="/v1/chat/completions").parametrize()
@settings(max_examples=EXAMPLES // 4)
def test_also_where_the_server_cannot_guide(case):
    keep_to_the_description(case)
