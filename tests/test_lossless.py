"""Losslessness by equality: the real engine, real drafters and a lossy link against the reference.

The reference (lab/testbed/reference.py) is plain transformers plus noise in numpy and shares no product code.
"""

import asyncio
import json
from dataclasses import dataclass
from functools import cache

import pytest

from edge_client.drafters import DRAFTERS
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.link.remote import RetryPolicy
from lab.testbed.reference import Reference, Sampling
from lab.training.heldout import heldout_path
from opensled.core.messages import MATCH, SamplingParams
from opensled.core.noise import noise_key
from opensled.models.store import model_path
from tests.fakes import Weather
from tests.system import CALM, ask, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.rules.served import ServedRules

MODEL_DRAFTERS = ("llamacpp", "onnx")
ALL_DRAFTERS = ("none", "lookup", *MODEL_DRAFTERS)
STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=11)
IMPATIENT = RetryPolicy(silence=0.3, first_retry=0.001, slowest_retry=0.02, first_open=60.0, give_up=120.0)

SAMPLINGS = (
    {"temperature": 0.0},
    {"temperature": 0.3},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    {"temperature": 1.0},
)


@dataclass(frozen=True)
class Case:
    """A prompt, how to continue it, and what the target alone writes."""

    prompt: tuple[int, ...]
    params: SamplingParams
    expected: tuple[int, ...]
    reason: str


@cache
def reference() -> Reference:
    return Reference(model_path("tiny"))


@cache
def cases(count: int = 16) -> tuple[Case, ...]:
    """Mixed sessions: every sampling, lengths from 1 up, some ended by a stop id in the middle."""
    items = [json.loads(line) for line in heldout_path().read_text().splitlines()]
    chats = [item["messages"] for item in items if item.get("messages")]
    return tuple(_case(number, chats[number * 19 % len(chats)]) for number in range(count))


def _case(number: int, messages) -> Case:
    prompt = tuple(reference().render_chat(messages))
    settings = {**SAMPLINGS[number % len(SAMPLINGS)], "seed": number - 3, "max_tokens": 1 + number * 7 % 25}
    expected, reason = reference().generate(prompt, **settings)
    if number % 4 == 3 and len(expected) > 4:
        settings["stop_ids"] = (expected[len(expected) // 2],)
        expected, reason = reference().generate(prompt, **settings)
    return Case(prompt, SamplingParams(**settings), tuple(expected), reason)


@cache
def factory(name: str):
    return DRAFTERS.get(name)(str(model_path("tiny-draft")), 1)


async def answer_all(
    engine, wanted, drafter, *, stop=FixedLength(4), weather=Weather(), patience=CALM, rule=MATCH
):
    """All cases at once, each with a drafter of its own."""
    limits = SessionLimits(linger=2.0, rules=ServedRules(trust_devices=True))
    async with running(
        engine, draft_wait=0.5, max_step_tokens=256, weather=weather, limits=limits
    ) as network:
        asked = [
            ask(
                network, case.prompt, factory(drafter).create(), case.params,
                stop=stop, patience=patience, rule=rule,
            )
            for case in wanted
        ]  # fmt: skip
        return await asyncio.gather(*asked)


def check(wanted, answers) -> None:
    for case, answer in zip(wanted, answers, strict=True):
        assert (answer.tokens, answer.finish_reason) == (case.expected, case.reason)


def brave_a_storm(engine, drafter, stop=FixedLength(4)) -> None:
    """All cases over links that lose, double and reorder."""
    answers = asyncio.run(answer_all(engine, cases(), drafter, stop=stop, weather=STORM, patience=IMPATIENT))
    check(cases(), answers)
    assert sum(answer.reopened for answer in answers) > 0


def rarely(*values):
    """What only `make test-long` pairs."""
    return [pytest.param(*value, marks=pytest.mark.long) for value in values]


# Every drafter meets a storm: these here, the others under policy `goodput` (tests/test_goodput_system.py).
@pytest.mark.parametrize("drafter", ["none", "onnx", *rarely(("lookup",), ("llamacpp",))])
def test_sixteen_mixed_sessions_in_a_storm(exact64, drafter):
    brave_a_storm(exact64, drafter)


ODD = [(length, MODEL_DRAFTERS[length % 2]) for length in range(9)]
EVEN = [(length, MODEL_DRAFTERS[1 - length % 2]) for length in range(9)]


@pytest.mark.parametrize(("length", "drafter"), [*ODD, *rarely(*EVEN)])
def test_every_draft_length(exact64, drafter, length):
    wanted = cases()[length % 4 :: 4]
    answers = asyncio.run(answer_all(exact64, wanted, drafter, stop=FixedLength(length)))
    check(wanted, answers)


@pytest.mark.parametrize("sessions", [1, 2, 5, 16])
def test_every_batch_size(exact64, sessions):
    wanted = cases()[-sessions:]
    answers = asyncio.run(answer_all(exact64, wanted, "llamacpp", stop=ConfidenceLength(8, confidence=0.3)))
    check(wanted, answers)


@pytest.mark.parametrize("drafter", ["llamacpp", "chain:lookup,cacheback,llamacpp"])
@pytest.mark.parametrize("stop", [HintLength(tree=60), ConfidenceLength(12, confidence=0.4)])
def test_the_default_policy_with_trees_and_blocks_that_end_at_a_doubtful_token(exact64, drafter, stop):
    check(cases(), asyncio.run(answer_all(exact64, cases(), drafter, stop=stop)))


@pytest.mark.parametrize("drafter", ALL_DRAFTERS)
def test_rule_ratio_is_greedy_at_temperature_zero(exact64, drafter):
    """Where the target's distribution is a single token, its law is its text: real drafters' own distributions."""
    wanted = [case for case in cases() if case.params.temperature == 0]
    answers = asyncio.run(answer_all(exact64, wanted, drafter, rule="ratio"))
    check(wanted, answers)
    rounds = [round for answer in answers for round in answer.rounds]
    if drafter in MODEL_DRAFTERS:
        assert sum(round.accepted for round in rounds) > 0


@pytest.mark.parametrize("drafter", ALL_DRAFTERS)
def test_level_exact_in_float32_does_not_depend_on_drafts_or_batches(exact32, drafter):
    """Bit-equal to the same engine decoding each sequence alone; the float64 reference may differ at a near tie."""
    assert exact32.info.numerics == "exact"
    answers = asyncio.run(answer_all(exact32, cases(), drafter))
    for case, answer in zip(cases(), answers, strict=True):
        assert answer.tokens == alone(exact32, case)
        if answer.tokens != case.expected:
            assert first_lead(case, answer.tokens) < 1e-4


_alone: dict[Case, tuple[int, ...]] = {}


def alone(engine, case: Case) -> tuple[int, ...]:
    if case not in _alone:
        (answer,) = asyncio.run(answer_all(engine, [case], "none"))
        _alone[case] = answer.tokens
    return _alone[case]


def first_lead(case: Case, tokens) -> float:
    """How far ahead the reference's winner was at the first difference, noise included."""
    at = next(i for i, (a, b) in enumerate(zip(tokens, case.expected)) if a != b)
    params = case.params
    sampling = Sampling(params.temperature, params.top_k, params.top_p, noise_key(params.seed or 0))
    return reference().leads(case.prompt, case.expected[: at + 1], sampling)[at].margin


@pytest.mark.parametrize("drafter", MODEL_DRAFTERS)
def test_drafts_are_accepted_and_no_token_is_wasted(exact64, drafter):
    answers = asyncio.run(answer_all(exact64, cases(), drafter))
    rounds = [round for answer in answers for round in answer.rounds]
    assert sum(round.accepted for round in rounds) > 0.3 * sum(round.drafted for round in rounds)
    settled = [round for answer in answers for round in answer.rounds[2:-1] if round.tokens]
    assert settled and all(len(round.tokens) == round.accepted + 1 for round in settled)
