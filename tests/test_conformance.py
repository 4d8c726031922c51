"""The Python half of the conformance table: the official client against real processes; cases in conformance/."""

from collections import Counter

import pytest

from tests.conformance.judge import faults
from tests.conformance.system import CASES, KEY, device, deviceless

# The server's own API in `make test-long` only: the readers and writers of its JSON are the device's.
SYSTEMS = [device, pytest.param(deviceless, marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=SYSTEMS, ids=["device", "deviceless"])
def observed(request, tmp_path_factory):
    from tests.conformance import python_client  # seconds of imports, of one worker

    with request.param(tmp_path_factory.mktemp("keys")) as url:
        return python_client.observe(url, KEY, CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_official_python_client(case, observed):
    assert faults(case, observed) == []


def test_the_table_is_as_long_as_promised():
    assert len(CASES) >= 60 and max(Counter(case["name"] for case in CASES).values()) == 1


def test_the_judge_sees_faults():
    case = {"name": "a", "expect": {"choices.#": 2, "choices.0.text": {"$match": "^b"}, "usage": None}}
    assert faults(case, {"a": {"reply": {"choices": [{"text": "a"}]}}}) == [
        "choices.#: 1",
        "choices.0.text: 'a'",
    ]
    refused = {"name": "a", "refused": {"status": 400, "param": "n"}}
    assert faults(refused, {"a": {"reply": {}}}) and faults(refused, {"a": {"error": {"status": 400}}})
    error = {"class": "BadRequestError", "status": 400, "param": "n", "code": "invalid_request"}
    assert faults(refused, {"a": {"error": error}}) == [] and faults(case, {"a": {"error": error}})
