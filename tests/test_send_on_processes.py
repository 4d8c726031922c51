"""Sending on in real processes: a server, a link of 80 ms, and devices that wait for each verdict or do not."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from opensled_testbed.processes import Process, free_port
from tests.scraping import samples
from tests.test_processes import generate, serve

STORY = "Write a short story about a rabbit in the big city."
LENGTH, TOKENS = 3, 60


@pytest.fixture(scope="module")
def far_server() -> Iterator[tuple[str, str]]:
    """Its address behind the link, and that of its own API."""
    api = f"127.0.0.1:{free_port()}"
    with serve("127.0.0.1:0", "tiny", "--http", api, "--policy", "fcfs", "--draft-wait", "10") as server:
        words = ["--profile", "wan-80", "--to", server.wait_ready(), "--listen", "127.0.0.1:0"]
        with Process(words, module="opensled_testbed.link_relay") as relay:
            yield relay.wait_ready(), api


def counts(api: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{api}/metrics", timeout=30) as reply:
        found = samples(reply.read().decode())
    names = {
        "drafts": "spec_decode_num_drafts_total",
        "continued": "continuations_total",
        "void": "void_continuations_total",
    }
    return {
        name: next(value for key, value in found.items() if key[0] == metric)
        for name, metric in names.items()
    }


def test_a_good_draft_sends_on_and_waits_for_fewer_verdicts(far_server) -> None:
    address, api = far_server
    texts, waited, sent_on = [], [], []
    for stop in ("fixed", "tests.ahead_drafts:SendsOn"):
        before = counts(api)
        answer = generate(
            address, "--drafter", "llamacpp", "--stop", stop, "--draft-length", str(LENGTH),
            "--max-tokens", str(TOKENS), "--temperature", "0", "--prompt", STORY,
        )  # fmt: skip
        gone = {name: value - before[name] for name, value in counts(api).items()}
        texts.append(answer["text"])
        standing = gone["continued"] - gone["void"]
        waited.append(gone["drafts"] - standing)
        sent_on.append(standing)
    assert texts[0] == texts[1] and texts[0]
    assert sent_on[0] == 0 and sent_on[1] >= 3, "of 60 tokens, a good part stands"
    assert waited[1] <= waited[0] - 3, "each of them is a round trip less"
