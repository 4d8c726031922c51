"""All that an edge does to hide its network, at once and over a link in a storm: the text stays the target's own.

Real target in float64, real llama.cpp and ONNX Runtime, against the reference (tests/test_lossless.py).
"""

import asyncio

import pytest

from edge_client.lengths.hint import HintLength
from tests.test_lossless import answer_all, brave_a_storm, cases, check, rarely

TREE = 60


def edges():
    """Drafter, and rule of its blocks."""
    return {
        "llamacpp": ("llamacpp", HintLength()),
        "onnx": ("onnx", HintLength()),
        "cacheback": ("cacheback", HintLength(tree=TREE)),
        "chain": ("chain:cacheback,llamacpp", HintLength(tree=TREE)),
        "accelerated": ("accelerated:llamacpp", HintLength()),
        "by text": ("tests.tiny_by_text:TinyByText", HintLength()),
    }


@pytest.fixture(params=edges())
def edge(request):
    return edges()[request.param]


# The two model drafters meet one alone in tests/test_lossless.py and under `goodput`.
@pytest.mark.parametrize(
    "name", ["cacheback", "chain", "accelerated", "by text", *rarely(("llamacpp",), ("onnx",))]
)
def test_sixteen_mixed_sessions_in_a_storm(exact64, name):
    brave_a_storm(exact64, *edges()[name])


def test_verdicts_commit_what_they_should(exact64, edge):
    """No token is lost or sent twice: what rounds and the server by itself commit adds up to the text."""
    drafter, stop = edge
    wanted = cases()[-4:]
    answers = asyncio.run(answer_all(exact64, wanted, drafter, stop=stop))
    check(wanted, answers)
    for answer in answers:
        commits = answer.commits
        assert sum(len(commit.tokens) for commit in commits) == len(answer.tokens)
        assert all(commit.accepted <= min(len(commit.tokens), commit.drafted) for commit in commits)


@pytest.mark.parametrize("drafter", ["chain:lookup,cacheback,llamacpp", "accelerated:llamacpp"])
def test_rule_ratio_is_greedy_at_temperature_zero(exact64, drafter):
    wanted = [case for case in cases() if case.params.temperature == 0]
    answers = asyncio.run(answer_all(exact64, wanted, drafter, stop=HintLength(tree=TREE), rule="ratio"))
    check(wanted, answers)
