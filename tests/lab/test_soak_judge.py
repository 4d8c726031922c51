"""The last word on the answers of a soak: what the reference would have written, up to flips at near ties."""

import numpy as np
import pytest

from lab.testbed.soak.account import Account, Suspect, TextSuspect
from lab.testbed.soak.check import Damage, damage
from lab.testbed.soak.judge import BOUNDS, Judge
from lab.testbed.soak.kinds import KINDS
from lab.testbed.soak.questions import Course, Question, Truth, questions
from opensled.core.messages import Limits, ModelInfo
from tests.lab.test_soak import Clock


@pytest.fixture(scope="module")
def judged():
    """A judge, and questions whose truths the reference itself has written."""
    judge = Judge(KINDS[0])
    reference = judge.reference
    asked = [Question({**question.body, "max_tokens": 12}) for question in questions(4, seed=0)]
    truths = []
    for question in asked:
        prompt, params = reference.render_chat(question.body["messages"]), question.params
        sampling = {"temperature": params.temperature, "seed": params.seed, "max_tokens": params.max_tokens}
        ids, reason = reference.generate(prompt, **sampling)
        truths.append(Truth(tuple(prompt), tuple(ids), reason, reference.decode(ids)))
    limits = Limits(max_draft=8, context_length=1024)
    info = ModelInfo("tiny", 2048, "", tuple(reference.eos_ids), limits, (), "exact", "", "", True)
    return judge, Course(asked, truths, info)


@pytest.mark.parametrize("engine", ["torch", "llamacpp"])
def test_the_judge_finds_what_the_target_would_not_have_written(judged, engine):
    judge, course = judged
    assert judge.truths(course, engine) == []
    account = Account(Clock())
    for number, truth in enumerate(course.truths):
        told = (*truth.ids[:3], truth.ids[3] + 1, *truth.ids[4:])
        account.suspects.append(Suspect(number, told, True, damage(told, truth.ids, True)))
    judge.settle(account, course, engine)
    assert len(account.wrongs) == len(account.damages) == 4 and account.flips == 0


def runner_up(judge, question, length):
    """A text that takes the second choice first, and by how much the first one led."""
    reference, prompt = judge.reference, judge.reference.render_chat(question.body["messages"])
    row = reference.logits(prompt)[0]
    first, second = np.argsort(row)[::-1][:2]
    ids, _ = reference.generate([*prompt, int(second)], temperature=0, max_tokens=length - 1)
    return reference.decode([int(second), *ids]), float(row[first] - row[second])


def test_the_judge_follows_answers_of_which_it_has_the_text_alone(judged, monkeypatch):
    """At level `fast` a near tie may fall otherwise: what the reference could have written is no damage, and what
    broke off must begin like it."""
    judge, course = judged
    number = next(n for n, question in enumerate(course.questions) if not question.params.temperature)
    text, lead = runner_up(judge, course.questions[number], 12)
    assert text != course.truths[number].text

    def settled(engine, *suspects):
        account = Account(Clock())
        account.text_suspects += [
            TextSuspect(number, told, complete, Damage(wrong=1)) for told, complete in suspects
        ]
        judge.settle(account, course, engine)
        return len(account.wrongs), len(account.damages), account.flips

    monkeypatch.setitem(BOUNDS, "llamacpp", lead * 1.001)
    assert settled("llamacpp", (text[:5], False), (text, True), (text, True)) == (0, 0, 1)
    assert settled("llamacpp", (text[:5], False)) == (1, 1, 0)  # of what, nobody knows
    assert settled("llamacpp", (text + "!", True), (text[:-1] + "\0", True)) == (2, 2, 0)
    assert settled("torch", (text, True)) == (1, 1, 0)
    monkeypatch.setitem(BOUNDS, "llamacpp", lead * 0.999)
    assert settled("llamacpp", (text, True)) == (1, 1, 0)
