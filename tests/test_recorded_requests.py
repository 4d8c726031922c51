"""Requests of real clients, as they were recorded: each is answered, and what has no effect is named in a header."""

import json
from pathlib import Path

import pytest

from http_api.bodies import IGNORED_HEADER
from tests.fake_backend import FakeBackend, call

REQUESTS = json.loads(Path(__file__).with_name("recorded_requests.json").read_text("utf-8"))


@pytest.mark.parametrize("recorded", REQUESTS, ids=lambda recorded: recorded["client"])
def test_a_recorded_request_is_answered(recorded):
    backend = FakeBackend()
    kind = recorded.get("type", "application/json")  # "" = the client names none
    headers = {"Content-Type": kind} if kind else {}
    answer = call(backend, recorded["path"], content=json.dumps(recorded["body"]).encode(), headers=headers)
    assert answer.status_code == 200, answer.text
    assert len(backend.tasks) == recorded["answers"]
    assert answer.headers.get(IGNORED_HEADER, "") == recorded.get("left_out", "")
