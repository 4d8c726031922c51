"""The equality of texts: mixed sessions on a real engine, real drafters and lossy links against the reference.

The reference (lab/testbed/reference.py) is plain transformers plus noise in numpy and shares no product code.
"""

import asyncio
import json
from dataclasses import dataclass
from functools import cache

import pytest

from edge_client.drafters import DRAFTERS
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RetryPolicy
from lab.testbed.reference import Reference
from lab.training.heldout import heldout_path
from opensled.core.messages import MATCH, SamplingParams
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
def chats() -> list[list[dict[str, str]]]:
    """The held-out chats of the tiny family."""
    items = [json.loads(line) for line in heldout_path().read_text().splitlines()]
    return [item["messages"] for item in items if item.get("messages")]


@cache
def cases(count: int = 16) -> tuple[Case, ...]:
    """Mixed sessions: every sampling, lengths from 1 up, some ended by a stop id in the middle."""
    return tuple(_case(number, chats()[number * 19 % len(chats())]) for number in range(count))


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


async def brave_a_storm(engine, drafter, stop=FixedLength(4)):
    """All cases over links that lose, double and reorder."""
    answers = await answer_all(engine, cases(), drafter, stop=stop, weather=STORM, patience=IMPATIENT)
    check(cases(), answers)
    assert sum(answer.reopened for answer in answers) > 0
    return answers


async def greedy_by_ratio(engine, drafter, stop=FixedLength(4)) -> int:
    """Where the target's distribution is a single token, its law is its text; how many drafted tokens stood."""
    wanted = [case for case in cases() if case.params.temperature == 0]
    answers = await answer_all(engine, wanted, drafter, stop=stop, rule="ratio")
    check(wanted, answers)
    return sum(round.accepted for answer in answers for round in answer.rounds)


def rarely(*values):
    """What only `make test-long` pairs."""
    return [pytest.param(*value, marks=pytest.mark.long) for value in values]
