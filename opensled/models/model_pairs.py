"""Pairs of a target and a draft model with one vocabulary, under a short name. None of them was run here.

The names are those of the repositories on Hugging Face. Digests are recorded at the first download (hub.py).
"""

from typing import NamedTuple


class ModelPair(NamedTuple):
    """Names on a hub, as `opensled pull` takes them."""

    target: str
    draft: str
    licence: str


PAIRS = {
    "qwen2.5": ModelPair(
        "Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0", "Apache-2.0"
    ),
    "llama3.1": ModelPair(
        "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0",
        "Llama 3.1 and 3.2 Community License",
    ),
    "llama3.2": ModelPair(
        "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0",
        "Llama 3.2 Community License",
    ),
    # 1B: the vocabulary of 4B and up has an id more, for images. A device masks it; a drafter of the server cannot.
    "gemma3": ModelPair("ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "ggml-org/gemma-3-270m-it-GGUF:Q8_0", "Gemma"),
}


def pair_of(target: str) -> ModelPair | None:
    """The pair of a target by its short name, or by its repository in any quantization."""
    repository = target.partition(":")[0]
    found = (
        pair for name, pair in PAIRS.items() if target == name or repository == pair.target.partition(":")[0]
    )
    return next(found, None)
