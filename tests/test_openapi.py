"""The published description is whole, and true: tests/openapi_run.py asks for what it allows and what it forbids."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from http_api.effects import OFF
from http_api.openapi import description
from tests.fake_backend import USUAL, FakeBackend, call
from tests.tiny_drafts import tiny_info


def _run(*arguments, **environment):
    """In a process of its own: the tests of all operations have one name there, and workers would run one of them."""
    options = ("-q", "-p", "no:cacheprovider", "tests/openapi_run.py")
    command = (sys.executable, "-m", "pytest", *options, *arguments)
    environment = {**os.environ, **environment}
    run = subprocess.run(
        command, cwd=Path(__file__).parents[1], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_api_keeps_to_its_description():
    _run("-m", "not long")


@pytest.mark.long
def test_also_at_every_border():
    _run("-m", "not long", OPENSLED_API_EXAMPLES="60")


@pytest.mark.long
def test_also_where_the_server_cannot_guide():
    _run("-m", "long", OPENSLED_API_EXAMPLES="60")


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
