"""A GGUF target served as real processes, where neither torch nor transformers can be imported."""

import json

import pytest

from lab.testbed.forcing import follow
from lab.testbed.processes import Process
from lab.testbed.reference import Reference
from lab.training.heldout import heldout_path
from opensled.models.store import model_path
from tests.absent import without
from tests.commands import opensled

# What extra llamacpp does not bring.
ABSENT = ("torch", "transformers", "safetensors", "huggingface_hub", "gguf", "httpx")
BOUND = 0.03  # logits, as in the demo


@pytest.fixture
def without_torch(cold_start, tmp_path, monkeypatch):
    """Python processes from here on import none of the blocked; servers start cold, for a warm one has them already."""
    for name, value in without(tmp_path, *ABSENT).items():
        monkeypatch.setenv(name, value)


def test_a_server_and_a_device_without_torch(without_torch, tmp_path):
    assert "torch" in opensled("serve", "--engine", "torch").stderr  # it is really out of reach
    messages = json.loads(heldout_path().read_text().splitlines()[60])["messages"]
    assert len(messages) == 1
    body = {"messages": messages, "temperature": 0.8, "seed": 5, "max_tokens": 30}
    question = (messages[0]["content"], "--temperature", "0.8", "--seed", "5", "--max-tokens", "30")
    log = tmp_path / "log"
    with Process(("serve", "--listen", "127.0.0.1:0", "--threads", "1"), log=log) as server:
        address = server.wait_ready()
        assert log.read_text().startswith(
            "engine llamacpp serves tiny; --engine chooses another\nloading tiny\n"
        )
        for drafter in ("lookup", "llamacpp"):
            answer = opensled(
                "generate", "--server", address, "--drafter", drafter, "--json", "--threads", "1", *question
            )
            assert answer.returncode == 0, answer.stderr
            text = json.loads(answer.stdout)["text"]
            assert follow(Reference(model_path("tiny")), body, text, BOUND) is not None
    assert server.process.returncode == 0


# The check itself


BODY = {"messages": [{"role": "user", "content": "Write a short story about a rabbit."}], "max_tokens": 12}


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_the_targets_own_text_is_followed_without_a_flip(reference, sampling):
    body = {**BODY, **sampling}
    ids, _ = reference.generate(reference.render_chat(body["messages"]), **sampling, max_tokens=12)
    path = follow(reference, body, reference.decode(ids), 0.0)
    assert path is not None and (path.tokens, path.flips, path.lead) == (len(ids), 0, 0.0)


def test_a_flip_counts_up_to_the_bound_and_not_beyond(reference):
    """The second best token at one position, then what the target writes after it."""
    body, prompt = {**BODY, "temperature": 0}, reference.render_chat(BODY["messages"])
    ids, _ = reference.generate(prompt, max_tokens=12)
    logits = reference.logits([*prompt, *ids[:4]])[0]
    best, second = logits.argsort()[::-1][:2]
    lead = logits[best] - logits[second]
    rest, _ = reference.generate([*prompt, *ids[:4], int(second)], max_tokens=7)
    flipped = reference.decode([*ids[:4], int(second), *rest])
    path = follow(reference, body, flipped, lead + 1e-6)
    assert path is not None and path.flips == 1 and path.lead == pytest.approx(lead)
    assert follow(reference, body, flipped, lead - 1e-6) is None
    assert follow(reference, body, reference.decode(ids)[:-3], 0.0) is None
    assert follow(reference, body, reference.decode(ids) + " and", 0.0) is None
