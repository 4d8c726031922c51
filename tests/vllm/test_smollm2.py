"""SmolLM2 in float32 through a real server: the texts of engine torch, and vLLM's draft model beside the devices."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from lab.testbed.processes import Process, free_port
from tests.vllm.test_model_folders import SMOLLM2
from tests.vllm.test_serve import ACCEPTED, ask, counted, edge, serve

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
MODEL = ("--model", str(SMOLLM2), "--context", "512", "--kv-tokens", "4096", "--max-sessions", "8")
NAMES = (
    "tokens_committed_total",
    "server_draft_tokens_total",
    *ACCEPTED,
)
NEAR_TIES = 1  # of eight texts: two engines add up in another order


def texts(address: str) -> list[object]:
    asked = [(kind, question) for kind in KINDS for question in QUESTIONS]

    def answer(kind: dict[str, Any], question: str) -> object:
        return ask(address, {"max_tokens": 64, **kind}, question, SMOLLM2.stem)

    with ThreadPoolExecutor(len(asked)) as threads:
        return list(threads.map(answer, *zip(*asked)))


@pytest.fixture(scope="module")
def wanted():
    address = f"127.0.0.1:{free_port()}"
    with serve("torch", *MODEL, "--http", address, "--server-drafter", "none") as process:
        process.wait_ready(600)
        return texts(address)


def differences(found: list[object], wanted: list[object]) -> int:
    return sum(one != other for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("drafter", ["none", "vllm:draft_model"])
def test_texts_are_those_of_engine_torch(wanted, drafter):
    """Its own weights draft for it, so nearly all that it proposes stands at temperature 0."""
    own = ("--draft-model", str(SMOLLM2)) if drafter == "vllm:draft_model" else ()
    metrics, api = (f"127.0.0.1:{free_port()}" for _ in range(2))
    options = (*MODEL, "--server-drafter", drafter, *own, "--http", api, "--metrics", metrics)
    with ExitStack() as ends:
        server = ends.enter_context(serve("vllm", *options)).wait_ready(900)
        plain = differences(texts(api), wanted)
        before = [counted(metrics, name) for name in NAMES]
        device: Process = ends.enter_context(edge(server, "lookup"))
        drafted = differences(texts(device.wait_ready()), wanted)
        after = [counted(metrics, name) for name in NAMES]
    print(drafter, "of 8 differ:", plain, "without a device,", drafted, "with one;", NAMES, before, after)
    assert max(plain, drafted) <= NEAR_TIES
    if own:
        _, proposed, accepted, _ = before
        assert accepted > 0.3 * proposed > 0
