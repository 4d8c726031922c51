"""Device, relay and server as processes over real gRPC: killed in mid-answer, guided, with log-probabilities."""

import json

import openai
import pytest

from lab.testbed.processes import Process
from opensled.models.store import model_path
from tests.tiny_models import random_model
from tests.tiny_processes import STORY, client_of, edge, serve

SCHEMA = {
    "type": "object",
    "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
    "required": ["room", "on"],
    "additionalProperties": False,
}
TOKENS = 140  # far from over when its first 20 characters are there
GUIDE = {"type": "json_schema", "json_schema": {"name": "light", "schema": SCHEMA}}


def relay(upstream, *more, address="127.0.0.1:0"):
    flags = ["--upstream", upstream, "--model", "tiny-draft", "--listen", address, "--json", *more]
    return Process(["relay", *flags])


@pytest.fixture(scope="module")
def above():
    with serve() as process:
        yield process.wait_ready()


def asked(device):
    return iter(
        client_of(device).chat.completions.create(
            model="tiny", messages=STORY, temperature=0.8, seed=3, max_tokens=TOKENS, stream=True,
            extra_body={"ignore_eos": True},
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(reference):
    ids, _ = reference.generate(
        reference.render_chat(STORY), temperature=0.8, seed=3, max_tokens=TOKENS, ignore_eos=True
    )
    return reference.decode(ids)


@pytest.mark.long
@pytest.mark.parametrize("killed", ["relay", "target"])
def test_a_tier_is_killed_in_mid_answer(expected, killed):
    with serve() as top:
        above = top.wait_ready()
        with relay(above) as hub, edge(below := hub.wait_ready()) as device:
            chunks = asked(device)
            text = told(chunks, 20)
            (hub if killed == "relay" else top).kill()
            with relay(above, address=below) if killed == "relay" else serve(above) as again:
                again.wait_ready()
                text += told(chunks)
    assert text == expected
    assert json.loads(again.lines[-1])["steps"] > 0  # it was really in mid-answer


def test_a_device_goes_round_a_relay_that_is_killed(above, expected):
    with relay(above) as hub, edge(hub.wait_ready(), more=("--fallback", above)) as device:
        chunks = asked(device)
        text = told(chunks, 20)
        hub.kill()
        text += told(chunks)
        again = told(asked(device))
    assert text == again == expected


@pytest.mark.long
def test_a_relay_answers_alone_under_its_own_name():
    alone = ("--offline", "local-only", "--give-up", "1")
    with serve() as top, relay(top.wait_ready(), *alone) as hub:
        with edge(hub.wait_ready(), more=("--offline", "local-only")) as device:
            chunks = asked(device)
            began = next(chunks)
            top.kill()
            names = [began.model, *[chunk.model for chunk in chunks]]
            reply = client_of(device).chat.completions.with_raw_response.create(
                model="tiny", messages=STORY, temperature=0, max_tokens=20, extra_body={"ignore_eos": True}
            )
        with edge(hub.address) as strict, pytest.raises(openai.APIStatusError) as caught:
            client_of(strict).chat.completions.create(model="tiny", messages=STORY, max_tokens=20)
    assert names[0] == "tiny" and names[-1] == "relay-alone/tiny"
    answer = reply.parse()
    assert answer.model == "relay-alone/tiny" and reply.headers["OpenSLED-Answer"] == "local-only"
    assert answer.usage.model_extra["opensled"]["local_tokens"] == answer.usage.completion_tokens == 20
    assert caught.value.status_code == 503


def told(chunks, least=1 << 30):
    """The text of the next chunks, `least` characters or all there are."""
    text = ""
    while len(text) < least and (chunk := next(chunks, None)) is not None:
        text += chunk.choices[0].delta.content or ""
    return text


@pytest.mark.long
def test_guides_and_logprobs_are_the_targets(above):
    with relay(above) as hub, edge(hub.wait_ready()) as near, edge(above) as far:
        answers = [
            client_of(device).chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": "Turn on the kitchen light."}],
                temperature=0.9,
                seed=4,
                max_tokens=60,
                logprobs=True,
                top_logprobs=2,
                response_format=GUIDE,
            )
            for device in (near, far)
        ]
    ours, theirs = (answer.choices[0] for answer in answers)
    assert ours.message.content == theirs.message.content and json.loads(ours.message.content)
    pairs = list(zip(ours.logprobs.content, theirs.logprobs.content, strict=True))
    assert len(pairs) > 5
    for mine, other in pairs:
        assert mine.token == other.token and mine.logprob == pytest.approx(other.logprob, abs=1e-4)


def test_a_relay_of_another_vocabulary_is_refused(above, tmp_path, capfd):
    folder = random_model("qwen2", tmp_path / "other", vocab_size=2048)
    tokenizer = json.loads((model_path("tiny") / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Process(["relay", "--upstream", above, "--model", str(folder)]) as hub:
        assert hub.process.wait(180) == 1
    assert "error: 'other' and 'tiny', the target above, do not share a vocabulary" in capfd.readouterr().err
