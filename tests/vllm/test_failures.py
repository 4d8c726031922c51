"""What fails in vLLM: a whole step, one sequence's rows, a draft that no model can read."""

from __future__ import annotations

import pytest

from opensled.core.errors import EngineError, EngineLost, InvalidRequest, NonFiniteLogits
from opensled.core.messages import SamplingParams
from opensled.core.protocol import EndRules
from tests.vllm.answers import (
    EOS,
    QUESTIONS,
    VOCABULARY,
    Answer,
    Drafts,
    by_torch,
    one_step,
    prompt_of,
    running,
    without,
    write,
)
from verify_server.engine.vllm.decoding import Decode

WARM = SamplingParams(temperature=0.8, seed=4)
STORY = "Tell me of a fox, a river, a bear and three birds in a wood. " * 4


@pytest.fixture(scope="module")
def core():
    with running() as core:
        yield core


@pytest.fixture
def breaking(core, monkeypatch):
    """Breaks the forward pass of each step in which `when` says so, given the ids of its sequences."""
    runner = core._core.model_executor.driver_worker.model_runner
    forward = runner._model_forward

    def until(when):
        def broken(*args, **kwargs):
            if when(runner.input_batch.req_ids):
                raise RuntimeError("broken on purpose")
            return forward(*args, **kwargs)

        monkeypatch.setattr(runner, "_model_forward", broken)

    return until


def answers(prefix: str = "") -> list[Answer]:
    return [Answer(prompt_of(prefix + question), WARM, name=question) for question in QUESTIONS]


def test_a_broken_step_costs_no_answer(core, breaking):
    wanted = [by_torch(answer) for answer in answers()]
    steps = iter(range(1000))
    breaking(lambda ids: next(steps) in (3, 30))
    written = answers()
    taken = write(core, written, Drafts(wanted, right=0.6, late=0.2))
    assert next(steps) > 31, "both were met"
    assert [answer.text for answer in written] == [answer.text for answer in wanted]
    assert taken < 150


def test_a_prompt_that_a_broken_step_left_uncomputed_is_computed(core, breaking):
    steps = iter(range(1000))
    breaking(lambda ids: next(steps) == 0)
    first = Answer(prompt_of(STORY), WARM, name="first")
    core.add("first", first.tokens, first.ends)
    assert one_step(core, {"first": first}, without)["first"].outcome is None
    core.abort(["first"])
    again = Answer(prompt_of(STORY), WARM, name="again")
    write(core, [again], without)
    assert again.text == by_torch(again).text


def test_the_sequence_that_breaks_steps_ends_alone(core, breaking):
    culprit = QUESTIONS[2]
    breaking(lambda ids: culprit in ids)
    written = answers()
    live = {answer.name: answer for answer in written}
    for answer in written:
        core.add(answer.name, answer.tokens, answer.ends)
    failed = []
    while live:
        for name, progress in one_step(core, live, without, failed).items():
            if isinstance(progress.outcome, EngineError):
                del live[name]
        live = {name: answer for name, answer in live.items() if not answer.finish_reason}
    assert failed == [culprit]
    assert core.idle
    for answer in written:
        assert answer.name == culprit or answer.text == by_torch(answer).text


def test_vllm_that_fails_twice_is_lost(core, breaking, monkeypatch):
    breaking(lambda ids: True)
    monkeypatch.setattr(core._core, "reset_prefix_cache", lambda: False)
    [answer] = answers()[:1]
    core.add(answer.name, answer.tokens, answer.ends)
    with pytest.raises(EngineLost, match="cannot go on"):
        one_step(core, {answer.name: answer}, without)
    core.abort([answer.name])


def test_rows_without_a_decision_are_computed_again(core):
    """A guide that is made anew, or an error of a row with a draft: nothing is decided, and the text stays right."""
    wanted = [by_torch(answer) for answer in answers()]
    written, asked = answers(), iter(range(10_000))
    right = Drafts(wanted, right=0.7)

    def sometimes(answer: Answer) -> Decode:
        decode = right(answer)

        def question(check):
            number = next(asked)
            if number % 3 == 0:
                return None
            return NonFiniteLogits("a bad row") if number % 3 == 1 and check.draft else answer.question(check)

        return decode._replace(question=question)

    write(core, written, sometimes)
    assert [answer.text for answer in written] == [answer.text for answer in wanted]


def test_an_error_stays_with_its_sequence(core):
    good, bad = answers()[:2]
    live = {answer.name: answer for answer in (good, bad)}
    for answer in live.values():
        core.add(answer.name, answer.tokens, answer.ends)

    def drafting(answer: Answer) -> Decode:
        refused = answer is bad and len(answer.text) == 3
        return (
            answer.decode()._replace(question=lambda check: EngineError("stuck"))
            if refused
            else without(answer)
        )

    failed: list[str] = []
    for _ in range(4):
        one_step(core, live, drafting, failed)
    assert failed == [bad.name]
    core.abort([bad.name])
    while not good.finish_reason:
        one_step(core, {good.name: good}, without)
    assert good.text == by_torch(good).text


def test_ids_outside_the_vocabulary_reach_no_step(core):
    [wanted] = [by_torch(answer) for answer in answers()[:1]]
    written = answers()[:1]

    def unreadable(answer: Answer) -> Decode:
        done = len(answer.tokens)
        return answer.decode([*wanted.tokens[done : done + 2], VOCABULARY, -5])

    taken = write(core, written, unreadable)
    assert written[0].text == wanted.text
    assert taken <= 15, "the part before them is verified"
    ends = EndRules(frozenset({EOS}), frozenset(), 20)
    for prompt in ([1, VOCABULARY], [-1], [], [5] * 20):
        with pytest.raises(InvalidRequest):
            core.add("refused", prompt, ends)
    with pytest.raises(InvalidRequest, match="positions"):
        core.add("refused", [5], EndRules(frozenset(), frozenset(), 10_000))
    assert core.idle
