"""Asking a running fleet and comparing it with the target alone."""

import asyncio
import json
from contextlib import ExitStack, contextmanager
from itertools import chain, repeat

import pytest

from lab.testbed import fleet_check
from lab.testbed.fleet_check import ask_all, edges_of, main
from lab.testbed.processes import Process
from lab.testbed.prompts import prompts_of
from opensled.core.errors import UsageError
from tests.answering import answering


@contextmanager
def liar(refusals=0):
    """A device that says what it likes, after so many refusals."""
    event = {"choices": [{"delta": {"content": "Trust me."}, "finish_reason": "stop"}], "usage": {}}
    told = 200, f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
    replies = chain([(503, b"")] * refusals, repeat(told))
    with answering(lambda path, body: next(replies)) as address:
        yield f"http://{address}"


def test_a_true_device_passes_and_one_that_lies_beside_it_does_not(capsys):
    serve = ["serve", "--listen", "127.0.0.1:0", "--dtype", "float64", "--threads", "1"]
    edge = ["edge", "--drafter", "lookup", "--http", "127.0.0.1:0", "--threads", "1"]
    few = ["--prompts", "2", "--max-tokens", "12"]
    with ExitStack() as stack:
        server = stack.enter_context(Process(serve, isolated=True))
        lying = f"false={stack.enter_context(liar())}"
        device = stack.enter_context(Process([*edge, "--server", server.wait_ready()], isolated=True))
        true = f"true=http://{device.wait_ready()}"
        assert main(["--edge", true, *few]) == 0
        assert "identical: all 2 answers" in capsys.readouterr().out
        assert main(["--edge", true, "--edge", lying, *few, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["identical"]
    assert [(edge["identical"], edge["wrong"]) for edge in report["edges"]] == [(True, 0), (False, 2)]


def test_a_request_that_was_turned_away_is_sent_again_and_counted(monkeypatch):
    monkeypatch.setattr(fleet_check, "PAUSE_S", 0.01)
    with liar(refusals=2) as url:
        [edge] = edges_of([f"false={url}"], 1, 8)
        asyncio.run(ask_all([edge]))
    assert (edge.turned_away, len(edge.replies), edge.error) == (2, 1, "")


def test_a_device_that_turns_everything_away_fails_in_the_end(monkeypatch):
    monkeypatch.setattr(fleet_check, "PAUSE_S", 0.01)
    monkeypatch.setattr(fleet_check, "RETRY_S", 0.05)
    with liar(refusals=1000) as url:
        [edge] = edges_of([f"false={url}"], 1, 8)
        asyncio.run(ask_all([edge]))
    assert not edge.replies and edge.error.startswith("HTTP 503")


def test_a_device_that_does_not_answer_fails_the_check_by_name(capsys):
    assert main(["--edge", "gone=http://127.0.0.1:9", "--prompts", "1"]) == 1
    said = capsys.readouterr()
    assert "gone" in said.out and "1 never came" in said.err


@pytest.mark.parametrize("edge", ["pi-5", "pi-5=", "=http://a", "pi-5=127.0.0.1:8411"])
def test_an_edge_is_a_name_and_an_address(edge):
    with pytest.raises(UsageError, match="NAME=URL"):
        edges_of([edge], 1, 8)


def test_no_edges_and_no_prompts_are_refused():
    with pytest.raises(UsageError, match="--edge"):
        edges_of([], 1, 8)
    with pytest.raises(UsageError, match="--prompts"):
        edges_of(["a=http://b"], 0, 8)


def test_prompts_follow_the_seed_and_differ_between_devices():
    assert prompts_of(0, 4, 8, seed=1) == prompts_of(0, 4, 8, seed=1)
    texts = [[body["messages"] for body in prompts_of(device, 4, 8)] for device in range(3)]
    assert texts[0] != texts[1] != texts[2]
    greedy, *sampled = prompts_of(0, 3, 8)
    assert greedy["temperature"] == 0 and all(body["seed"] and body["temperature"] for body in sampled)
