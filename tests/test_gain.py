"""The law of one round, by hand, and what the doctor makes of it."""

import asyncio
import re
import time
from dataclasses import replace

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import drafting_gain
from edge_client.doctor.draft import DraftReport
from edge_client.doctor.drafting_gain import by_law, check_gain, report_gain, verdict
from edge_client.doctor.finding import fail
from edge_client.doctor.server_checks import ServerReport
from edge_client.doctor.server_speed import ServerSpeed, check_server_speed, own_decoding
from edge_client.doctor.trial import GainReport, Prediction, predict
from hw_profiles.speculation import WORTH, RoundCosts
from opensled.core.errors import Overloaded
from opensled.core.messages import Limits
from opensled.core.printable import digits
from tests.fakes import FakeEngine
from tests.golden_boards import BOARDS, plant
from tests.serving import linked, serving
from tests.tiny_drafts import tiny_info
from verify_server.admission.session_manager import SessionLimits


def exchange(draft_s=0.02, rtt_s=0.01, answer_s=0.09, own_s=0.06, acceptance=0.5):
    return RoundCosts(draft_s, rtt_s, lambda length: answer_s, own_s, acceptance)


# -- the law ---------------------------------------------------------------------------------------------


def test_a_round_by_hand():
    law = exchange()
    assert law.tokens(2) == 1 + 0.5 + 0.25
    # Three tokens right: drafting is hidden
    assert law.seconds(2) == pytest.approx(0.04 + 0.10 - 0.125 * 0.04)
    assert law.rate(2) == pytest.approx(1.75 / 0.135)
    assert law.rate(0) == pytest.approx(1 / 0.06)


def test_what_look_ahead_hides_is_no_more_than_the_wait():
    slow = exchange(draft_s=1.0)
    assert slow.seconds(1) == pytest.approx(1.0 + 0.1 - 0.25 * 0.1)


def test_drafts_that_cost_nothing_and_are_always_right():
    law = exchange(draft_s=0.0, rtt_s=0.0, answer_s=0.06, acceptance=1.0)
    assert law.best(8).length == 8 and law.best(8).times == pytest.approx(9)


def test_the_best_length_is_the_best_of_all():
    for draft_s in (0.001, 0.01, 0.05):
        for rtt_s in (0.001, 0.05, 0.2):
            law = exchange(draft_s, rtt_s, acceptance=0.7)
            assert law.best(12).rate == max(law.rate(length) for length in range(1, 13))


def test_slower_links_want_longer_blocks_and_bring_less():
    near, far = (exchange(rtt_s=rtt_s, acceptance=0.8).best() for rtt_s in (0.001, 0.2))
    assert near.length < far.length and near.times > far.times


def test_a_server_whose_answers_take_longer_with_longer_blocks():
    speed = ServerSpeed(decode_s=0.02, block=8, verdict_s=0.07)
    assert speed.step_s(8, rtt_s=0.01) == pytest.approx(0.06)
    assert speed.step_s(4, rtt_s=0.01) == pytest.approx(0.04)
    assert speed.step_s(8, rtt_s=1.0) == 0.02  # never less than a step of decoding
    assert ServerSpeed(0.02).step_s(8, 0.01) == 0.02


# -- what people read ------------------------------------------------------------------------------------


def test_a_gain():
    finding = verdict(DoctorConfig(), exchange(draft_s=0.001, acceptance=0.7), 8, "this server")
    assert finding.status == "ok"
    assert finding.detail == (
        "this server by itself gives a user 17 tokens/s; drafting here gives about 1.8x the tokens/s of the "
        "server's own decoding (1.1x to 2.9x), best with k = 8"
    )


@pytest.mark.parametrize(
    ("own_s", "said"),
    [
        (0.01, "would slow this device down here: 0.13x"),
        (0.0745, "would bring nothing here: 0.97x"),
        (0.077, "would bring nothing here: 1.0x"),
    ],
)
def test_no_gain(own_s, said):
    finding = verdict(DoctorConfig(stop="fixed"), exchange(own_s=own_s), 8, "it")
    assert finding.status == "warn" and said in finding.detail and "--drafter none" in finding.fix


def test_a_device_that_rests_by_itself_needs_no_fix():
    finding = verdict(DoctorConfig(stop="hint"), exchange(own_s=0.01), 8, "it")
    assert finding.status == "ok" and finding.detail.endswith(
        "the server then asks for no drafts, and decodes by itself"
    )


def by_law_of(config, server=None, draft=None):
    report = GainReport()
    by_law(config, server or ServerReport(), draft or DraftReport(), report)
    return report


@pytest.mark.parametrize("name", BOARDS)
def test_boards_are_judged_by_what_is_published_of_them(name, tmp_path):
    config = DoctorConfig(root=str(plant(name, tmp_path)), link="lte", draft_model="qwen-0.5b.gguf")
    speed, link, assumed, fast, hub = by_law_of(config).findings
    assert "tokens/s with a 0.5b draft (published for " in speed.detail
    assert link.detail == "45 ms (assumed: lte; another one with --link NAME)"
    assert "agrees with 70%" in assumed.detail and "not measured" in assumed.detail
    assert "dense-8b on a100-80" in fast.detail and "would slow this device down" in fast.detail
    assert "dense-8b on agx-orin" in hub.detail


def test_only_the_stronger_boards_help_a_hub(tmp_path):
    """docs/hardware.md: a Pi 4 drafts more slowly than a hub decodes, a Jetson does not."""
    found = {}
    for name in BOARDS:
        config = DoctorConfig(root=str(plant(name, tmp_path / name)))
        found[name] = by_law_of(config).findings[-1].detail
    assert "would slow" in found["pi-4"] and "would bring nothing" in found["pi-5"]
    assert "gives about" in found["orin-nano"] and "gives about" in found["agx-orin"]


def test_what_was_measured_counts_more_than_what_is_published():
    info = tiny_info(limits=Limits(max_draft=4, context_length=512))
    server = ServerReport(info=info, round_trip=0.002, speed=ServerSpeed(0.05, 4, 0.06))
    config = DoctorConfig(server="hub:7411", draft_model="tiny-draft")
    report = by_law_of(config, server, DraftReport(seconds=0.001))
    speed, link, assumed, drafting = report.findings
    assert speed.detail == "1,000 tokens/s (measured just now, tiny-draft)"
    assert link.detail == "2.0 ms (measured just now)" and assumed.detail.endswith("; all else was measured")
    law = RoundCosts(0.001, 0.002, lambda length: 0.05 + 0.002 * length, 0.05, 0.7)
    assert law.best(4).times > WORTH and f"about {digits(law.best(4).times)}x" in drafting.detail
    assert f"best with k = {law.best(4).length}" in drafting.detail and law.best(4).length <= 4
    assert report.prediction == Prediction(law.best(4).rate, 20.0, "assumed", 0.7)


def test_a_server_on_the_same_machine_is_no_fair_measure():
    server = ServerReport(info=tiny_info(), round_trip=0.002, speed=ServerSpeed(0.05))
    assumed = by_law_of(DoctorConfig(server="127.0.0.1:7411"), server, DraftReport(seconds=0.001)).findings[2]
    assert "the server shares this machine" in assumed.detail


def test_nothing_is_foretold_of_a_device_that_does_not_draft(tmp_path):
    assert by_law_of(DoctorConfig(drafter="none")).findings == []
    config = DoctorConfig(root=str(plant("pi-5", tmp_path)), drafter="cacheback")
    assert by_law_of(config).findings == []


def test_a_draft_model_that_cannot_be_used_promises_nothing(tmp_path):
    """Also where its speed is known, or that of others on the board."""
    config = DoctorConfig(root=str(plant("pi-5", tmp_path)), draft_model="qwen-0.5b.gguf")
    misfit = DraftReport([fail("vocabulary", "another one", "another model")], seconds=0.001)
    assert by_law_of(config).findings
    server = ServerReport(info=tiny_info(), round_trip=0.002, speed=ServerSpeed(0.05))
    for known in (ServerReport(), server):
        assert by_law_of(config, known, misfit) == GainReport()


def test_a_tiny_draft_model_promises_nothing_for_a_large_target(tmp_path):
    """0.5 MB draft fast, and know nothing of an 8B target: its published board counts, else nothing is foretold."""
    fast = DraftReport(seconds=0.0005)
    config = DoctorConfig(draft_model="tiny-draft", drafter="llamacpp")
    (finding,) = by_law_of(replace(config, root=str(tmp_path)), draft=fast).findings
    assert (
        finding.status == "warn"
        and "nothing is foretold" in finding.detail
        and "x the tokens" not in finding.detail
    )
    assert "tiny-draft (0.5 MB)" in finding.detail and "--server" in finding.fix
    speed, *_ = by_law_of(replace(config, root=str(plant("pi-5", tmp_path))), draft=fast).findings
    assert "0.5b draft (published for pi-5)" in speed.detail
    own = ServerReport(info=tiny_info(), round_trip=0.002, speed=ServerSpeed(0.05))
    assert by_law_of(config, own, fast).prediction  # its own target, asked


@pytest.mark.parametrize("measures", [True, False])
def test_one_figure_without_drafts(monkeypatch, measures):
    """Of whole answers where these were measured, else the server's own; never both."""
    server = ServerReport([], tiny_info(), round_trip=0.002, speed=ServerSpeed(0.05))

    async def measure(config):
        return predict(STEPS) if measures else "no answers"

    monkeypatch.setattr(drafting_gain, "measure", measure)
    report, config = GainReport(), DoctorConfig(server="hub:7411", draft_model="tiny-draft")
    asyncio.run(check_gain(config, config, server, DraftReport(seconds=0.001), report))
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
    {"step": "device", "drafter": "a pencil"},
    answer("stories", True, 30, 1.0, rounds=10, drafted=40, accepted=20),
    answer("stories", False, 20, 1.0),
    answer("code", True, 60, 1.0, rounds=10, drafted=50, accepted=40),
    answer("code", False, 20, 1.0),
    answer("code", True, 0, 0.0),  # it ended with its first token
]


def test_a_prediction_has_as_many_tokens_of_each_kind():
    found = predict(STEPS)
    assert found.rate == pytest.approx(40) and found.own_rate == pytest.approx(20)
    assert found.acceptance == pytest.approx(60 / 90) and found.tokens_per_round == pytest.approx(4)
    assert found.by_kind == {"stories": 30, "code": 60} and found.answers == 2 and found.drafter == "a pencil"
    assert found.as_json()["basis"] == "measured"


def test_a_few_tokens_are_no_prediction():
    assert predict([]) is None
    assert predict([*STEPS[:2], answer("stories", False, 15, 1.0)]) is None


def test_what_was_measured_in_words():
    accepted, drafting = report_gain(DoctorConfig(), predict(STEPS))
    assert "accepts 67% of 90 draft tokens, 4.0 tokens a round" in accepted.detail
    assert "2 short answers; a pencil" in accepted.detail
    assert "about 40 tokens/s, without drafts 20 (2.0x); stories 30, code 60" in drafting.detail


@pytest.mark.parametrize(("stop", "status"), [("hint", "ok"), ("fixed", "warn")])
def test_drafts_that_were_measured_to_be_slow(stop, status):
    slow = [answer("code", True, 30, 4.0), answer("code", False, 30, 1.0)]
    accepted, drafting = report_gain(DoctorConfig(stop=stop), predict(slow))
    assert "nothing was drafted" in accepted.detail
    assert drafting.status == status and "would slow this device down here" in drafting.detail


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
    speed = asked()
    finding = own_decoding(speed)
    assert finding.status == "ok" and "tokens/s for this device without drafts" in finding.detail
    assert speed.block == 8 and speed.decode_s > 0.002 and speed.verdict_s > 0.002


def test_a_server_that_takes_short_drafts_only():
    speed = asked(limits=SessionLimits(max_sessions=3, max_draft=4, linger=0.05))
    assert speed.block == 4 and speed.verdict_s > 0


def test_a_server_that_takes_no_drafts():
    speed = asked(limits=SessionLimits(max_sessions=3, max_draft=0, linger=0.05))
    assert speed.block == 0 and "verdict" not in own_decoding(speed).detail


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
