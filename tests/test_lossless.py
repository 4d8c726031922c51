"""Losslessness by equality: the real engine, real drafters, a lossy link, against the reference (tests/lossless.py)."""

import pytest

from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from lab.testbed.reference import Sampling
from opensled.core.noise import noise_key
from tests.lossless import (
    ALL_DRAFTERS,
    MODEL_DRAFTERS,
    Case,
    answer_all,
    brave_a_storm,
    cases,
    check,
    greedy_by_ratio,
    rarely,
    reference,
)

STORMS = (("fcfs", "none"), ("fcfs", "onnx"), ("goodput", "lookup"), ("goodput", "llamacpp"))
RARE = (("fcfs", "lookup"), ("fcfs", "llamacpp"), ("goodput", "none"), ("goodput", "onnx"))


@pytest.mark.parametrize(("each_policy", "drafter"), [*STORMS, *rarely(*RARE)], indirect=["each_policy"])
async def test_sixteen_mixed_sessions_in_a_storm(exact64, each_policy, drafter):
    await brave_a_storm(exact64, drafter)


ODD = [(length, MODEL_DRAFTERS[length % 2]) for length in range(9)]
EVEN = [(length, MODEL_DRAFTERS[1 - length % 2]) for length in range(9)]


@pytest.mark.parametrize(("length", "drafter"), [*ODD, *rarely(*EVEN)])
@pytest.mark.usefixtures("each_policy")
async def test_every_draft_length(exact64, drafter, length):
    wanted = cases()[length % 4 :: 4]
    answers = await answer_all(exact64, wanted, drafter, stop=FixedLength(length))
    check(wanted, answers)


@pytest.mark.parametrize("sessions", [1, 2, 5, 16])
@pytest.mark.usefixtures("each_policy")
async def test_every_batch_size(exact64, sessions):
    wanted = cases()[-sessions:]
    answers = await answer_all(exact64, wanted, "llamacpp", stop=ConfidenceLength(8, confidence=0.3))
    check(wanted, answers)


@pytest.mark.parametrize("drafter", ["llamacpp", "chain:lookup,cacheback,llamacpp"])
@pytest.mark.parametrize("stop", [HintLength(tree=60), ConfidenceLength(12, confidence=0.4)])
async def test_the_default_policy_with_trees_and_blocks_that_end_at_a_doubtful_token(exact64, drafter, stop):
    check(cases(), await answer_all(exact64, cases(), drafter, stop=stop))


@pytest.mark.parametrize("drafter", ALL_DRAFTERS)
@pytest.mark.usefixtures("each_policy")
async def test_rule_ratio_is_greedy_at_temperature_zero(exact64, drafter):
    assert await greedy_by_ratio(exact64, drafter) > 0 or drafter not in MODEL_DRAFTERS


@pytest.mark.parametrize("drafter", ALL_DRAFTERS)
@pytest.mark.usefixtures("each_policy")
async def test_level_exact_in_float32_does_not_depend_on_drafts_or_batches(exact32, drafter):
    """Bit-equal to the same engine decoding each sequence alone; the float64 reference may differ at a near tie."""
    assert exact32.info.numerics == "exact"
    answers = await answer_all(exact32, cases(), drafter)
    for case, answer in zip(cases(), answers, strict=True):
        assert answer.tokens == await alone(exact32, case)
        if answer.tokens != case.expected:
            assert first_lead(case, answer.tokens) < 1e-4


_alone: dict[Case, tuple[int, ...]] = {}


async def alone(engine, case: Case) -> tuple[int, ...]:
    if case not in _alone:
        (answer,) = await answer_all(engine, [case], "none")
        _alone[case] = answer.tokens
    return _alone[case]


def first_lead(case: Case, tokens) -> float:
    """How far ahead the reference's winner was at the first difference, noise included."""
    at = next(i for i, (a, b) in enumerate(zip(tokens, case.expected)) if a != b)
    params = case.params
    sampling = Sampling(params.temperature, params.top_k, params.top_p, noise_key(params.seed or 0))
    return reference().leads(case.prompt, case.expected[: at + 1], sampling)[at].margin


@pytest.mark.parametrize("drafter", MODEL_DRAFTERS)
@pytest.mark.usefixtures("each_policy")
async def test_drafts_are_accepted_and_no_token_is_wasted(exact64, drafter):
    answers = await answer_all(exact64, cases(), drafter)
    rounds = [round for answer in answers for round in answer.rounds]
    assert sum(round.accepted for round in rounds) > 0.3 * sum(round.drafted for round in rounds)
    settled = [round for answer in answers for round in answer.rounds[2:-1] if round.tokens]
    assert settled and all(len(round.tokens) == round.accepted + 1 for round in settled)


# -- all that an edge does to hide its network ----------------------------------------------------------------------


CHAIN, ACCELERATED = "chain:cacheback,llamacpp", "accelerated:llamacpp"


def edges():
    """Drafter, and rule of its blocks; the latter has a state."""
    return {
        "llamacpp": ("llamacpp", HintLength()),
        "onnx": ("onnx", HintLength()),
        "cacheback": ("cacheback", HintLength(tree=60)),
        "chain": (CHAIN, HintLength(tree=60)),
        "accelerated": (ACCELERATED, HintLength()),
        "by text": ("tests.tiny_by_text:TinyByText", HintLength()),
        "short chain": (CHAIN, FixedLength(4)),
        "trees, and a model with tables in front": (
            "chain:cacheback,accelerated:llamacpp",
            FixedLength(5, tree=16),
        ),
        "three": ("chain:lookup,cacheback,llamacpp", HintLength(tree=60)),
        "trees accelerated": (ACCELERATED, HintLength(tree=60)),
    }


# The two model drafters meet one alone above.
@pytest.mark.parametrize("name", [*list(edges())[2:8], *rarely(("llamacpp",), ("onnx",))])
async def test_an_edge_in_a_storm(exact64, name):
    await brave_a_storm(exact64, *edges()[name])


@pytest.mark.parametrize("name", list(edges())[:6])
async def test_verdicts_commit_what_they_should(exact64, name):
    """No token is lost or sent twice: what rounds and the server by itself commit adds up to the text."""
    drafter, stop = edges()[name]
    wanted = cases()[-4:]
    answers = await answer_all(exact64, wanted, drafter, stop=stop)
    check(wanted, answers)
    for answer in answers:
        commits = answer.commits
        assert sum(len(commit.tokens) for commit in commits) == len(answer.tokens)
        assert all(commit.accepted <= min(len(commit.tokens), commit.drafted) for commit in commits)


@pytest.mark.parametrize("name", ["three", "trees accelerated"])
async def test_rule_ratio_with_trees_is_greedy_at_temperature_zero(exact64, name):
    await greedy_by_ratio(exact64, *edges()[name])


@pytest.mark.parametrize("drafter", ["cacheback", CHAIN, ACCELERATED])
async def test_rule_ratio_takes_drafts_of_tables_and_of_a_model_behind_them(exact64, drafter):
    assert await greedy_by_ratio(exact64, drafter) > 0
