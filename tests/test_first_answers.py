"""Twenty plain questions to SmolLM2 as `opensled serve --model smollm2` serves it: the answers are those of float32."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lab.benchmarks.first_answer import QUESTIONS, TOKENS, ask, difference, is_right
from lab.testbed.gguf_reference import GgufReference
from opensled.core.messages import ChatMessage
from opensled.models.store import FETCHABLE, fetched_folder
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start.load_target import load

# Read when the tests are collected: during tests the cache is an empty folder (tests/conftest.py).
MODEL = fetched_folder("smollm2") / Path(FETCHABLE["smollm2"].member).name
MIN_EQUAL = 18
NEAR_TIE = 0.1  # logits between float32's own token and the other one

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MODEL.is_file(), reason="needs SmolLM2; run: opensled pull smollm2"),
]


@pytest.fixture(scope="module")
def target() -> ServedModel:
    """By its name and all defaults; what it is widened to is written for these tests alone."""
    folder = fetched_folder("smollm2")
    folder.mkdir(parents=True)
    (folder / MODEL.name).symlink_to(MODEL)
    yield load(ServeConfig(model="smollm2", threads=1, kv_tokens=1024))
    shutil.rmtree(folder)
    shutil.rmtree(Path(os.environ["OPENSLED_CACHE_DIR"]) / "widened")


def test_twenty_plain_questions(target: ServedModel) -> None:
    reference = GgufReference(MODEL)
    left = {}
    for question, fact in QUESTIONS.items():
        prompt = target.text.render([ChatMessage("user", question)])
        assert list(prompt) == reference.render_chat([{"role": "user", "content": question}])
        answer = ask(target.engine, prompt).tokens
        assert len(answer) == TOKENS or answer[-1] in reference.eos_ids
        if found := difference(reference, prompt, answer):
            left[question] = found
            right = is_right(question, reference.decode(answer))
            own = reference.decode(reference.generate(prompt, max_tokens=TOKENS)[0])
            assert not fact or right or not is_right(question, own), question
    print(
        "\n".join(
            f"{question}: token {each.place + 1}, gap {each.gap:.3f}" for question, each in left.items()
        )
    )
    assert len(QUESTIONS) - len(left) >= MIN_EQUAL, left
    assert all(each.gap <= NEAR_TIE for each in left.values()), left


def test_the_file_as_it_is_stored_answers_otherwise() -> None:
    """What the test above would say of it."""
    stored = load(ServeConfig(model=str(MODEL), threads=1, kv_tokens=1024, dtype="stored"))
    reference = GgufReference(MODEL)
    prompts = [stored.text.render([ChatMessage("user", question)]) for question in QUESTIONS]
    left = [difference(reference, prompt, ask(stored.engine, prompt).tokens) for prompt in prompts]
    assert left.count(None) < MIN_EQUAL
