"""Policy `goodput` in real processes over real gRPC: devices of every kind at once, one frozen in mid-answer."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from openai import OpenAI

from lab.testbed.processes import Process
from lab.testbed.reference import Reference
from tests.tiny_processes import client_of, edge, prompts

DRAFTERS = ("llamacpp", "onnx", "lookup", "none")
SAMPLINGS = ({"temperature": 0}, {"temperature": 0.8, "seed": 7})
TOKENS = 40
FROZEN = "Write a short story about a rabbit in the big city."


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Process]]:
    """By drafter, on one server; and one more, to be frozen."""
    words = ["serve", "--policy", "goodput", "--dtype", "float64", "--listen", "127.0.0.1:0"]
    with Process(words, isolated=True) as server, ExitStack() as stack:
        address = server.wait_ready()
        found = {name: stack.enter_context(edge(address, name)) for name in DRAFTERS}
        yield {**found, "frozen": stack.enter_context(edge(address, "llamacpp"))}


def expected(reference: Reference, question: str, **sampling) -> str:
    prompt = reference.render_chat([{"role": "user", "content": question}])
    return reference.decode(reference.generate(prompt, max_tokens=TOKENS, **sampling)[0])


def said(client: OpenAI, question: str, **sampling) -> str:
    answer = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": question}], max_tokens=TOKENS, **sampling
    )
    return answer.choices[0].message.content or ""


def test_all_devices_at_once_read_the_targets_own_words(devices, reference):
    """One device falls silent in mid-answer and comes back when the others are done: its words are the same, too."""
    stream = client_of(devices["frozen"]).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": FROZEN}], max_tokens=TOKENS, temperature=0, stream=True
    )  # fmt: skip
    chunks = iter(stream)
    begun = next(chunks).choices[0].delta.content or ""
    devices["frozen"].process.send_signal(signal.SIGSTOP)
    try:
        asked = [
            (name, question, sampling)
            for name in DRAFTERS
            for question in prompts(2)
            for sampling in SAMPLINGS
        ]
        clients = {name: client_of(devices[name]) for name in DRAFTERS}
        with ThreadPoolExecutor(len(asked)) as pool:
            answers = list(pool.map(lambda each: said(clients[each[0]], each[1], **each[2]), asked))
    finally:
        devices["frozen"].process.send_signal(signal.SIGCONT)
    texts = {
        (question, str(sampling)): expected(reference, question, **sampling)
        for _, question, sampling in asked[: len(asked) // len(DRAFTERS)]
    }
    assert answers == [texts[question, str(sampling)] for _, question, sampling in asked]
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert begun + rest == expected(reference, FROZEN, temperature=0)
