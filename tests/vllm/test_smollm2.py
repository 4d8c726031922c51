"""SmolLM2, a GGUF file, in float32 through a real server: texts of engine torch, also beside a draft model of vLLM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.testbed.processes import free_port
from opensled.models.store import FETCHABLE, fetched_folder
from tests.vllm.servers import READY_S, ask, edge, serve

# Read when the tests are collected: during tests the cache is an empty folder (tests/conftest.py).
SMOLLM2 = fetched_folder("smollm2") / Path(FETCHABLE["smollm2"].member).name
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not SMOLLM2.is_file(), reason="needs SmolLM2; run: opensled pull smollm2"),
]
QUESTIONS = (
    "What is the capital of France?",
    "Write a Python function that adds two numbers.",
    "List the planets of the solar system, one in a line.",
    "Write two sentences about the sea.",
)
KINDS = ({"temperature": 0}, {"temperature": 0.8, "seed": 5})
SHORT = ("--context", "512", "--max-sessions", "8")
NEAR_TIES = 1  # of eight texts: two engines add up in another order


def texts(address: str) -> list[object]:
    asked = [(kind, question) for kind in KINDS for question in QUESTIONS]

    def answer(kind: dict[str, Any], question: str) -> object:
        return ask(address, {"max_tokens": 64, **kind}, question, SMOLLM2.stem)

    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(answer, *zip(*asked)))


@pytest.fixture(scope="module")
def wanted() -> list[object]:
    address = f"127.0.0.1:{free_port()}"
    options = (*SHORT, "--kv-tokens", "4096", "--http", address, "--server-drafter", "none")
    with serve("torch", *options, model=str(SMOLLM2)) as process:
        process.wait_ready(READY_S)
        return texts(address)


@pytest.mark.parametrize("drafter", ["none", pytest.param("vllm:draft_model", marks=pytest.mark.long)])
def test_texts_are_those_of_engine_torch(wanted, drafter):
    """Its own weights draft for it."""
    own = ("--draft-model", str(SMOLLM2)) if drafter == "vllm:draft_model" else ()
    options = (*SHORT, "--server-drafter", drafter, *own)
    with (
        serve("vllm", *options, model=str(SMOLLM2)) as server,
        edge(server.wait_ready(READY_S), "lookup") as device,
    ):
        found = texts(device.wait_ready())
    assert sum(one != other for one, other in zip(found, wanted, strict=True)) <= NEAR_TIES
