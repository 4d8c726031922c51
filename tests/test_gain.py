"""What drafting brings by the doctor's short answers, in words."""

import asyncio
import re

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import drafting_gain
from edge_client.doctor.drafting_gain import ENOUGH, check_gain, predict, report_gain


@pytest.mark.parametrize(
    ("said", "detail", "fix"),
    [
        (
            "note: no draft model is here; drafting with lookup",
            "no draft model is here",
            "drafting with lookup",
        ),
        (
            "note: another vocabulary: it drafts by text",
            "another vocabulary: it drafts by text",
            "--draft-model",
        ),
    ],
)
def test_what_a_device_notes_is_a_warning(monkeypatch, said, detail, fix):
    findings, prediction = told(monkeypatch, STEPS, [said, "a line of llama.cpp"])
    assert (findings[0].status, findings[0].detail) == ("warn", detail) and findings[0].fix.startswith(fix)
    assert prediction.times == pytest.approx(2) and findings[-1].check == "drafting"


@pytest.mark.parametrize(
    ("steps", "said", "why"),
    [
        ([{"step": "error", "code": "overloaded", "reason": "no room"}], ["noise"], "no room"),
        ([], ["Segmentation fault"], "Segmentation fault"),
        ([], [], "ended after a few tokens"),
    ],
)
def test_answers_that_do_not_come_tell_why(monkeypatch, steps, said, why):
    (finding,), prediction = told(monkeypatch, steps, said)
    assert finding.status == "warn" and why in finding.detail and prediction is None


def told(monkeypatch, steps, said):
    """The findings and the prediction, where the process of the short answers tells `steps` and `said`."""

    async def run_module(module, options, seconds):
        return steps, 0, said

    monkeypatch.setattr(drafting_gain, "run_module", run_module)
    findings = []
    return findings, asyncio.run(check_gain(DoctorConfig(), findings))


# -- measured --------------------------------------------------------------------------------------------


def answer(kind, drafts, tokens, seconds, rounds=0, drafted=0, accepted=0):
    counts = {"rounds": rounds, "drafted": drafted, "accepted": accepted}
    return {"step": "answer", "kind": kind, "drafts": drafts, "tokens": tokens, "seconds": seconds, **counts}


STEPS = [
    {"step": "drafter", "words": "a pencil"},
    {"step": "vocabulary", "words": "the same"},
    answer("stories", True, 30, 1.0, rounds=10, drafted=40, accepted=20),
    answer("stories", False, 40, 2.0),
    answer("code", True, 60, 1.0, rounds=10, drafted=50, accepted=40),
    answer("code", False, 40, 2.0),
    answer("code", True, 0, 0.0),  # it ended with its first token
    {"step": "why", "words": "drafts of 4 tokens"},
]


def test_a_prediction_has_as_many_tokens_of_each_kind():
    found = predict(STEPS)
    assert found.rate == pytest.approx(40) and found.own_rate == pytest.approx(20)
    assert (found.accepted, found.drafted) == (60, 90) and found.tokens_per_round == pytest.approx(4)
    assert found.by_kind == {"stories": 30, "code": 60} and found.answers == 2 and found.drafter == "a pencil"
    assert found.as_json()["acceptance"] == 0.667 and found.why == "drafts of 4 tokens"


def test_a_few_tokens_are_no_prediction():
    assert predict([]) is None
    assert predict([*STEPS[:5], answer("stories", False, ENOUGH - 41, 1.0)]) is None


@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_a_few_drafts_are_no_gain(rounds):
    """Seen: 1.2x from 0 of 5 tokens."""
    counts = {"rounds": rounds, "drafted": 5 * rounds, "accepted": 0}
    few = [answer("code", True, 200, 1.0, **counts), answer("code", False, 200, 1.0), STEPS[-1]]
    acceptance, drafting = report_gain(DoctorConfig(), predict(few))
    assert "cannot be told" in drafting.detail and "drafts of 4 tokens" in drafting.detail
    assert not re.search(r"\dx", drafting.detail) and "%" not in acceptance.detail


def test_what_was_measured_in_words():
    vocabulary, accepted, drafting = report_gain(DoctorConfig(), predict(STEPS))
    assert (vocabulary.check, vocabulary.detail) == ("vocabulary", "the same")
    assert "accepts 60 of 90 draft tokens, 4.0 tokens a round" in accepted.detail
    assert "2 short answers; a pencil" in accepted.detail
    assert "about 40 tokens/s, without drafts 20 (2.0x); stories 30, code 60" in drafting.detail


@pytest.mark.parametrize(("stop", "status"), [("hint", "ok"), ("fixed", "warn")])
def test_drafts_that_were_measured_to_be_slow(stop, status):
    slow = [answer("code", True, 70, 9.0, rounds=20, drafted=80), answer("code", False, 70, 1.0)]
    _, drafting = report_gain(DoctorConfig(stop=stop), predict(slow))
    assert drafting.status == status and "drafts slow this device down here" in drafting.detail


@pytest.mark.parametrize(
    ("rate", "note", "status", "said"),
    [
        (20.0, "", "ok", "20 tokens/s"),
        (0.0, "it is away", "fail", "it is away"),
        (0.0, "", "fail", "nothing to say"),
    ],
)
def test_a_draft_server_alone(monkeypatch, rate, note, status, said):
    step = {"step": "draft server", "rate": rate, "note": note}
    finding = told(monkeypatch, [*STEPS, step], [])[0][0]
    assert (finding.check, finding.status) == ("draft speed", status) and said in finding.detail
