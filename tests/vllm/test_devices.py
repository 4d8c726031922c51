"""Sixteen devices at once at a real server over gRPC: drafts right, wrong and late, and readers who leave."""

from __future__ import annotations

import pytest

from tests.vllm.answers import QUESTIONS, Answer, assert_close_logprobs, by_torch, prompt_of
from tests.vllm.known_devices import Style, Written, write
from tests.vllm.test_serve import serve, tenants_file
from tests.vllm.test_texts import KINDS, WARM

STYLES = {
    "right": Style(),
    "wrong": Style(right=0.0),
    "60 % right, late, readers leave": Style(right=0.6, late={0.02: 0.3, 0.7: 0.05}, cancelled=6),
    "long, 90 % right": Style(right=0.9, length=16),
}
STORY = "Tell me of a fox, a river, a bear and three birds in a wood. " * 3


@pytest.fixture(scope="module")
def known() -> list[Answer]:
    """Two of each kind, by engine torch."""
    kinds = [KINDS[name] for name in KINDS] * 2
    questions = [*QUESTIONS, *reversed(QUESTIONS)]
    return [by_torch(Answer(prompt_of(question), **kind)) for question, kind in zip(questions, kinds)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tokens = tenants_file(tmp_path_factory.mktemp("tenants"))
    with serve("vllm", "--kv-tokens", "8192", "--tokens", tokens, "--server-drafter", "none") as process:
        yield process.wait_ready(600)


def assert_same(written: Written, known: Answer) -> None:
    assert (list(written.ids), written.finish_reason) == (known.text, known.finish_reason)
    read = known.anew()
    read.tokens, read.logprobs = known.tokens, list(written.logprobs)
    assert_close_logprobs(read, known)


@pytest.mark.parametrize("style", STYLES)
def test_sixteen_texts_are_those_of_engine_torch(server, known, style):
    found = write(server, known, STYLES[style], tokens=("one", "two"))
    for written, answer in zip(found, known, strict=True):
        assert_same(written, answer)
    rounds = [sum(getattr(each.stats, name) for each in found) for name in ("rounds", "drafted", "accepted")]
    print(style, "rounds, drafted, accepted:", *rounds, "of", sum(len(answer.text) for answer in known))
    _, drafted, accepted = rounds
    assert drafted, "devices draft"
    if STYLES[style].right == 1:
        assert accepted > 0.4 * drafted, "the others came after the server had gone on"
    if not STYLES[style].right:
        assert accepted < 0.1 * drafted


def test_a_tenant_finds_no_kv_of_another_one(server):
    """One prompt, one tenant after the other: only what a tenant has computed itself is found."""
    known = by_torch(Answer(prompt_of(STORY), WARM, 8))
    found = {}
    for name, token in {"first": "one", "other": "two", "again": "one", "other again": "two"}.items():
        (written,) = write(server, [known], tokens=(token,))
        assert list(written.ids) == known.text
        found[name] = written.stats.cached_tokens
    whole = (len(known.prompt) - 1) // 32 * 32
    assert whole and found == {"first": 0, "other": 0, "again": whole, "other again": whole}
