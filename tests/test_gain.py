"""What drafting brings by the doctor's short answers, in words, and the server's own speed."""

import asyncio
import re
import time

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import drafting_gain
from edge_client.doctor.drafting_gain import check_gain, report_gain
from edge_client.doctor.server_checks import ServerReport
from edge_client.doctor.server_speed import check_server_speed, own_decoding
from edge_client.doctor.trial import ENOUGH, GainReport, predict
from opensled.core.errors import Overloaded
from tests.fakes import FakeEngine
from tests.serving import linked, serving
from tests.tiny_drafts import tiny_info


@pytest.mark.parametrize("measures", [True, False])
def test_one_figure_without_drafts(monkeypatch, measures):
    """Of whole answers where these were measured, else the server's own; never both."""
    server = ServerReport([], tiny_info(), decode_s=0.05)

    async def measure(config):
        return predict(STEPS) if measures else "no answers"

    monkeypatch.setattr(drafting_gain, "measure", measure)
    report, config = GainReport(), DoctorConfig(server="hub:7411", draft_model="tiny-draft")
    asyncio.run(check_gain(config, config, server, report))
    said = " ".join(finding.detail for finding in report.findings)
    assert ("without drafts 20 (2.0x)" in said) == measures
    assert ("20 tokens/s for this device without drafts" in said) == (not measures)
    rates = re.findall(
        r"without drafts ([\d.]+)|([\d.]+) tokens/s for this device without|user ([\d.]+) tokens", said
    )
    assert {"".join(found) for found in rates} == {"20"}


# -- measured --------------------------------------------------------------------------------------------


def answer(kind, drafts, tokens, seconds, rounds=0, drafted=0, accepted=0):
    counts = {"rounds": rounds, "drafted": drafted, "accepted": accepted}
    return {"step": "answer", "kind": kind, "drafts": drafts, "tokens": tokens, "seconds": seconds, **counts}


STEPS = [
    {"step": "drafter", "words": "a pencil"},
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
    assert predict([*STEPS[:4], answer("stories", False, ENOUGH - 41, 1.0)]) is None


@pytest.mark.parametrize("rounds", [0, 1, 12])
def test_a_few_drafts_are_no_gain(rounds):
    """Seen: 1.2x from 0 of 5 tokens."""
    counts = {"rounds": rounds, "drafted": 5 * rounds, "accepted": 0}
    few = [answer("code", True, 200, 1.0, **counts), answer("code", False, 200, 1.0), STEPS[-1]]
    acceptance, drafting = report_gain(DoctorConfig(), predict(few))
    assert "cannot be told" in drafting.detail and "drafts of 4 tokens" in drafting.detail
    assert not re.search(r"\dx", drafting.detail) and "%" not in acceptance.detail


def test_what_was_measured_in_words():
    accepted, drafting = report_gain(DoctorConfig(), predict(STEPS))
    assert "accepts 60 of 90 draft tokens, 4.0 tokens a round" in accepted.detail
    assert "2 short answers; a pencil" in accepted.detail
    assert "about 40 tokens/s, without drafts 20 (2.0x); stories 30, code 60" in drafting.detail


@pytest.mark.parametrize(("stop", "status"), [("hint", "ok"), ("fixed", "warn")])
def test_drafts_that_were_measured_to_be_slow(stop, status):
    slow = [answer("code", True, 70, 9.0, rounds=20, drafted=80), answer("code", False, 70, 1.0)]
    _, drafting = report_gain(DoctorConfig(stop=stop), predict(slow))
    assert drafting.status == status and "drafts slow this device down here" in drafting.detail


# -- the server's own speed ------------------------------------------------------------------------------


class Steady(FakeEngine):
    """Takes its time, so that the text is not at its end before the first draft arrives."""

    def forward(self, segments):
        time.sleep(0.002)
        return super().forward(segments)


def asked(**serving_options):
    async def scenario():
        engine = Steady(num_blocks=800, context_length=3000)
        async with serving(engine=engine, **serving_options) as (_, address), linked(address) as link:
            return await check_server_speed(link, await link.describe(), "match")

    return asyncio.run(scenario())


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Other tests may keep this machine busy."""
    monkeypatch.setattr("edge_client.doctor.server_speed.SECONDS", 30.0)


def test_a_real_link_to_a_fake_target():
    decode_s = asked()
    assert decode_s > 0.002 and "tokens/s for this device without drafts" in own_decoding(decode_s).detail


def test_a_server_without_room(monkeypatch):
    async def refuse(self):
        raise Overloaded("no room", retry_after=9)

    monkeypatch.setattr("edge_client.link.remote.RemoteSession.open", refuse)
    finding = asked()
    assert finding.status == "warn" and "no room" in finding.detail


def test_answers_that_end_at_once(monkeypatch):
    monkeypatch.setattr("edge_client.doctor.server_speed.TOKENS", 3)
    finding = asked()
    assert "every answer ended" in finding.detail
