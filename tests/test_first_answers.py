"""Twenty plain questions to SmolLM2 as `opensled serve --model smollm2` serves it: the answers are those of float32."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from lab.testbed.gguf_reference import GgufReference
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.models.store import FETCHABLE, fetched_folder
from verify_server.engine.base import SampleRequest, Segment
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start.load_target import load

# Read when the tests are collected: during tests the cache is an empty folder (tests/conftest.py).
MODEL = fetched_folder("smollm2") / Path(FETCHABLE["smollm2"].member).name
TOKENS = 24  # of an answer, at most
MIN_EQUAL = 18
NEAR_TIE = 0.1  # logits between float32's own token and the other one

# Question -> what a right answer says; "" = there is no one right answer.
QUESTIONS = {
    "What is the capital of France?": "Paris",
    "Hello": "",
    "What is 2 + 2?": "4",
    "Name three colours.": "",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "How many days are in a week?": "7",
    "What is the largest planet of our solar system?": "Jupiter",
    "Write one sentence about the sea.": "",
    "What is the opposite of hot?": "cold",
    "What do bees make?": "honey",
    "Name the first month of the year.": "January",
    "What is water made of?": "hydrogen",
    "Translate 'good morning' into Spanish.": "Buenos días",
    "What is the capital of Japan?": "Tokyo",
    "Say hello in one sentence.": "",
    "What colour is the sky on a clear day?": "blue",
    "How many legs does a spider have?": "eight",
    "What is the boiling point of water in degrees Celsius?": "100",
    "Give me a tip for sleeping well.": "",
    "What is a dog?": "animal",
}

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MODEL.is_file(), reason="needs SmolLM2; run: opensled pull smollm2"),
]


class Difference(NamedTuple):
    """The first token of an answer that is not float32's."""

    place: int
    gap: float  # in float32's logits, between its own token and that one


def ask(engine, prompt) -> list[int]:
    """Up to `TOKENS` tokens, each the likeliest one."""
    blocks = tuple(range(-(-(len(prompt) + TOKENS) // engine.info.block_size)))
    text, answer, start = list(prompt), [], 0
    while len(answer) < TOKENS and not set(answer) & set(engine.info.eos_ids):
        scores = engine.forward([Segment(tuple(text[start:]), start, blocks, 1)])
        answer += scores.sample_one(SampleRequest([0], SamplingParams(temperature=0.0), b"", len(text)))
        start, text = len(text), [*prompt, *answer]
    engine.forget(blocks)
    return answer


def difference(reference: GgufReference, prompt, answer) -> Difference | None:
    """Where an answer leaves the text that float32 writes; None = nowhere."""
    rows = reference.logits([*prompt, *answer[:-1]], len(answer))
    for place, (row, token) in enumerate(zip(rows, answer)):
        if row.argmax() != token:
            return Difference(place, float(row.max() - row[token]))
    return None


@pytest.fixture(scope="module")
def target() -> ServedModel:
    """By its name and all defaults; what it is widened to is written for these tests alone."""
    folder = fetched_folder("smollm2")
    folder.mkdir(parents=True)
    (folder / MODEL.name).symlink_to(MODEL)
    yield load(ServeConfig(model="smollm2", threads=1, kv_tokens=1024))
    shutil.rmtree(folder)
    shutil.rmtree(Path(os.environ["OPENSLED_CACHE_DIR"]) / "widened")


def test_twenty_plain_questions(target):
    reference = GgufReference(MODEL)
    left = {}
    for question, fact in QUESTIONS.items():
        prompt = target.text.render([ChatMessage("user", question)])
        assert list(prompt) == reference.render_chat([{"role": "user", "content": question}])
        answer = ask(target.engine, prompt)
        assert len(answer) == TOKENS or answer[-1] in reference.eos_ids
        if found := difference(reference, prompt, answer):
            left[question] = found
            own = reference.decode(reference.generate(prompt, max_tokens=TOKENS)[0])
            told = fact.lower() in reference.decode(answer).lower()
            assert told or fact.lower() not in own.lower(), question
    print(
        "\n".join(
            f"{question}: token {each.place + 1}, gap {each.gap:.3f}" for question, each in left.items()
        )
    )
    assert len(QUESTIONS) - len(left) >= MIN_EQUAL, left
    assert all(each.gap <= NEAR_TIE for each in left.values()), left


def test_the_file_as_it_is_stored_answers_otherwise():
    """What the test above would say of it."""
    stored = load(ServeConfig(model=str(MODEL), threads=1, kv_tokens=1024, dtype="stored"))
    reference = GgufReference(MODEL)
    prompts = [stored.text.render([ChatMessage("user", question)]) for question in QUESTIONS]
    left = [difference(reference, prompt, ask(stored.engine, prompt)) for prompt in prompts]
    assert left.count(None) < MIN_EQUAL
