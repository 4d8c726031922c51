"""Riders: optional traits of a sequence, which the round asks at fixed places and never names."""

import pickle
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from adapt.kept.text_trace import LikeliestReading, TextTrace
from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Draft, DraftBlock, DraftToken, Guide, Prefill, SamplingParams, Verdict
from scheduler.fcfs import Fcfs
from scheduler.plan import Slice
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.guiding import tiny
from tests.rounds import looping, one_step
from tests.sessions import made
from tests.system import ask, running
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.riders.answer_logprobs import AnswerLogprobs, LogprobsReading
from verify_server.riders.guide import GuideMasks
from verify_server.riders.prompt_logprobs import PromptLogprobs, PromptReading
from verify_server.round.rider import DecideAgain, Rider
from verify_server.round.session import Session
from verify_server.round.step import question_of, run_step
from verify_server.rules.base import AcceptanceResult
from verify_server.rules.decide import ChunkRows, decide

ROOT = Path(__file__).resolve().parents[1]
PROMPT = (3, 1, 4, 1, 5)
WIDE = 2100  # of the masks of `tiny`
WARM = SamplingParams(temperature=0.8, seed=3, presence_penalty=1.0)


def session(*riders, params=SamplingParams(temperature=0), max_tokens=8, blocks=None):
    found = made(1, PROMPT, max_tokens, blocks or BlockTable(BlockPool(32, 4)), params=params, riders=riders)
    found.attach(len(PROMPT))
    return found


# -- what the round knows of them -----------------------------------------------------------------------------


CORE = (
    "round/session.py", "round/step.py", "round/step_item.py", "round/sequence.py", "round/outbox.py",
    "round/machine.py", "round/loop.py", "round/preemption.py", "round/twins.py", "round/draft_stage.py",
    "rules/decide.py",
)  # fmt: skip


@pytest.mark.parametrize("file", CORE)
def test_the_round_names_no_rider(file):
    source = (ROOT / "verify_server" / file).read_text("utf-8")
    assert set(re.findall(r"verify_server\.riders\.(\w+)", source)) == set()
    named = re.findall(
        r"(?i)\w*(?:constraint|grammar|logprob|penalt|emitted|trace\b|likeliest\b|image)\w*", source
    )
    assert named == [], "a trait of some sequences alone"


def test_a_session_has_few_fields():
    assert len(fields(Session)) <= 14  # limits only go down


# -- when they are asked ----------------------------------------------------------------------------------------


class Diary(Rider):
    """Changes nothing, and writes down what it is asked."""

    def __init__(self):
        self.asked = []

    def _note(name):
        def hook(self, *args):
            self.asked.append((name, *args))
            return getattr(Rider, name)(self, *args)

        return hook

    for _name in (
        "segment",
        "reads",
        "check",
        "committed",
        "tell",
        "ended",
        "rewound",
        "ask",
        "limit_slice",
        "reusable",
    ):
        locals()[_name] = _note(_name)

    def took(self):
        asked, self.asked = self.asked, []
        return [(name, type(first).__name__) if name == "tell" else (name,) for name, first, *_ in asked]


def test_a_rider_is_asked_at_the_same_places_of_every_step():
    engine, diary = FakeEngine(), Diary()
    loop = looping(engine, Fcfs(0.0), HardwareProfile(64))
    one = session(diary, blocks=loop.machine.target.memory.place("", 0, {}))
    loop.add(one)
    diary.took()
    one_step(loop)
    step = [("limit_slice",), ("segment",), ("reads",), ("check",), ("committed",)]
    step += [("tell", "Prefill"), ("tell", "Verdict")]
    assert diary.took() == [("reusable",), *step], "the prompt has more than a block"
    one_step(loop)
    assert diary.took() == step
    one.retell(len(PROMPT), 0.0)
    assert diary.took() == [("rewound",), ("tell", "Verdict")]
    while not one.sequence.over:
        one_step(loop)
    assert diary.took()[-1] == ("ended",)
    assert one.sequence.tokens[len(PROMPT) :] == continuation(PROMPT, 8)


def test_a_rider_that_decides_again_costs_the_draft_and_no_token():
    class Once(Rider):
        def check(self, check):
            if check.draft:
                raise DecideAgain
            return check

    engine = FakeEngine()
    one = session(Once())
    one.submit(Draft(1, DraftBlock(5, tuple(map(DraftToken, continuation(PROMPT, 3))))), 0.0)
    item = one.plan(Slice(1, 5, True), 0.0)
    [outcome] = run_step(engine, [item])
    assert outcome is None and one.commit(item, outcome, 0.0) == 0
    item = one.plan(Slice(1, 5, True), 0.0)
    assert not item.check.draft
    assert one.commit(item, run_step(engine, [item])[0], 0.0) == 1
    assert one.sequence.tokens[5:] == continuation(PROMPT, 1)


def test_an_error_of_a_rider_ends_its_own_sequence_alone():
    class Broken(Rider):
        def check(self, check):
            raise ZeroDivisionError

    items = [one.plan(Slice(1, 5, True), 0.0) for one in (session(Broken()), session())]
    items[1] = items[1]._replace(segment=items[1].segment._replace(blocks=(9, 10)))
    error, result = run_step(FakeEngine(), items)
    assert error.code == "engine" and result == AcceptanceResult(0, continuation(PROMPT, 1)[0])


async def test_who_asks_for_nothing_has_none():
    async with running(FakeEngine()) as network:
        await ask(network, PROMPT, OracleDrafter(1.0), SamplingParams(temperature=0, max_tokens=3))
        (plain,) = network.manager.remembered
        assert plain.riders == ()


# -- decided elsewhere --------------------------------------------------------------------------------------------


ELSEWHERE = """
import pickle, sys
from verify_server.rules.decide import decide
from verify_server.engine.numpy_scores import NumpyScores
questions, logits = pickle.load(sys.stdin.buffer)
pickle.dump(decide(questions, NumpyScores(logits)), sys.stdout.buffer)
assert "verify_server.round.session" not in sys.modules, "no session is needed"
"""


def test_what_a_step_asks_is_complete_before_it_and_decided_in_another_process():
    kept = []
    one = session(
        GuideMasks(tiny().start(Guide(json_schema='{"type": "boolean"}'), ())),
        PromptLogprobs(PROMPT, 2, WIDE),
        AnswerLogprobs(3),
        TextTrace("t", 0.0, 5, kept.append),
        params=WARM,
    )
    one.submit(Draft(1, DraftBlock(5, tuple(map(DraftToken, (7, 9))))), 0.0)
    chunk = one.plan(Slice(1, 3, False), 0.0)
    questions = {"chunk": question_of(chunk, chunk.segment.rows - 1)}
    one.commit(chunk, decide(questions, NumpyScores(np.zeros((3, WIDE), np.float32)))["chunk"], 0.0)
    item = one.plan(Slice(1, 2, True), 0.0)
    assert (chunk.segment.rows, item.segment.rows) == (3, 2 + 2)
    before = chunk.segment.rows
    questions["decision"] = question_of(item, before + item.segment.rows - 1 - 2)
    check = questions["decision"].check
    assert len(check.masks) == 3 and [each.path for each in check.emitted] == [(), (7,), (7, 9)]
    logits = np.random.default_rng(5).normal(size=(before + 4, WIDE)).astype(np.float32)
    here = decide(questions, NumpyScores(logits))
    ran = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=pickle.dumps((questions, logits)),
        capture_output=True,
        cwd=ROOT,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    there = pickle.loads(ran.stdout)
    assert there == here
    assert isinstance(there["chunk"], ChunkRows) and set(there["chunk"].read) == {PromptReading}
    assert set(there["decision"].read) == {PromptReading, LogprobsReading, LikeliestReading}
    one.outbox.drain()
    one.commit(item, there["decision"], 0.0)
    prefill, verdict = one.outbox.drain()
    assert isinstance(prefill, Prefill) and len(prefill.tokens) == 1
    assert isinstance(verdict, Verdict)
    assert [len(entry) for entry in verdict.logprobs] == [4] * len(verdict.tokens)
    assert [entry[0][0] for entry in verdict.logprobs] == list(verdict.tokens)
