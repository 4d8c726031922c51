"""GGUF files in vLLM, by the folders that are written of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opensled.models.store import FETCHABLE, fetched_folder, model_file
from tests.vllm.stock import ask, load
from verify_server.engine.torch import loading
from verify_server.engine.torch.loading import Weights
from vllm_plugin.model_folder import folder_of

# Read when the tests are collected: during tests the cache is an empty folder (tests/conftest.py).
SMOLLM2 = fetched_folder("smollm2") / Path(FETCHABLE["smollm2"].member).name


def continued(weights: Weights, prompt: tuple[int, ...], length: int) -> list[int]:
    """The most likely next ids, by engine torch's network in float32."""
    network = loading.load_network(weights, torch.device("cpu"), torch.float32)
    network.set_attn_implementation("sdpa")
    ids = list(prompt)
    with torch.inference_mode():
        while len(ids) < len(prompt) + length:
            ids.append(int(network(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def said(model: Path, question: str, tokens: int) -> str:
    """vLLM's answer, which must be that of engine torch from the GGUF file itself."""
    llm = load(folder_of(str(model)))
    try:
        answers, (text,), _ = ask(llm, [question], tokens)
    finally:
        llm.llm_engine.engine_core.shutdown()
    ((prompt, ids),) = answers.items()
    assert ids == continued(loading.find_weights(str(model)), prompt, len(ids))
    return text


def test_tiny() -> None:
    assert said(model_file("tiny", "*.gguf"), "What is the capital of France?", 24)


@pytest.mark.real
@pytest.mark.skipif(not SMOLLM2.is_file(), reason="needs SmolLM2; run: opensled pull smollm2")
def test_smollm2() -> None:
    assert said(SMOLLM2, "What is the capital of France?", 24) == "The capital of France is Paris."
