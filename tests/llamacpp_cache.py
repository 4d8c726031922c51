"""Engines of llama.cpp on small random models, and a fresh context that knows one sequence only."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from tests.tiny_gguf import VOCABULARY, random_gguf
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_cache import LlamaCache
from verify_server.engine.llamacpp.llama_engine import LlamaCppEngine

NUM_BLOCKS, BLOCK = 16, 16  # 256 tokens: the least that llama.cpp makes, so that every cell counts
# Largest difference of a logit between two ways to compute it, in units of the logits' spread: keys and values are
# float16, and rounding depends on the batch: 0.041 was the largest of 12,000. A wrong cell makes it about 1 or more.
BOUND = 0.1
FAMILIES = ("llama", "gemma2")


@pytest.fixture(scope="module")
def gguf_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a random model by family."""
    folder = tmp_path_factory.mktemp("gguf")
    return cache(lambda family: random_gguf(family, folder / f"{family}.gguf"))


@pytest.fixture
def engine(gguf_of) -> Callable[[str], LlamaCppEngine]:
    return lambda family: llamacpp.load(gguf_of(family), threads=1, kv_tokens=NUM_BLOCKS * BLOCK)


@pytest.fixture(scope="module")
def fresh(gguf_of) -> Callable[[str, Sequence[int]], np.ndarray]:
    """Logits after each token of a sequence, or after its last ones, from a cache that holds nothing else."""

    @cache
    def cache_of(family: str) -> LlamaCache:
        return LlamaCache(LlamaModel(gguf_of(family)), cells=256, sequences=1, threads=StepThreads(1))

    def logits(family: str, tokens: Sequence[int], rows: int = 0) -> np.ndarray:
        cache_of(family).truncate(0, 0)
        return cache_of(family).decode([LlamaPiece(0, 0, tokens, rows or len(tokens))])

    return logits


def tokens_of(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1, VOCABULARY), k=count)


def assert_close(given: np.ndarray, expected: np.ndarray) -> None:
    """Within the bound, and the same winner wherever its lead is above it."""
    spread = expected.std()
    assert np.abs(given - expected).max() <= BOUND * spread
    best = np.sort(expected, axis=1)
    clear = best[:, -1] - best[:, -2] > 2 * BOUND * spread
    assert (given.argmax(1) == expected.argmax(1))[clear].all()
