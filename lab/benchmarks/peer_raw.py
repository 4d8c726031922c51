"""How fast two builds of llama.cpp compute the same tokens: that of llama-cpp-python, and that in `xllamacpp`.

`xllamacpp` has no `llama_decode`, so its whole server is asked by one user, and tells its own timings.
"""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np

from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_cache import LlamaCache

PROMPT, DECODED = 256, 32  # tokens
PROMPT_MS, TOKEN_MS = "ms a prompt token", "ms a decoded token"


class RawSpeeds:
    """Both builds, in turns. Ids are random: no text is cached."""

    def __init__(self, model: Path, url: str) -> None:
        self._model = LlamaModel(model, 0)
        self._cache = LlamaCache(self._model, 1024, 1, StepThreads(1))
        self._url, self._chance = url, np.random.default_rng(0)
        self.contenders: dict[str, Callable[[], dict[str, float]]] = {
            "llama-cpp-python": self._ours,
            "xllamacpp": self._theirs,
        }

    def _ids(self) -> list[int]:
        ids: list[int] = self._chance.integers(100, self._model.vocab_size // 2, PROMPT).tolist()
        return ids

    def _ours(self) -> dict[str, float]:
        """The bare loop of decode calls, the likeliest id taken each time."""
        self._cache.truncate(0, 0)
        started = time.perf_counter()
        logits = self._cache.decode([LlamaPiece(0, 0, self._ids(), 1)])
        read = time.perf_counter()
        for position in range(PROMPT, PROMPT + DECODED):
            logits = self._cache.decode([LlamaPiece(0, position, [int(logits[0].argmax())], 1)])
        ended = time.perf_counter()
        return {PROMPT_MS: 1000 * (read - started) / PROMPT, TOKEN_MS: 1000 * (ended - read) / DECODED}

    def _theirs(self) -> dict[str, float]:
        body = {"prompt": self._ids(), "n_predict": DECODED, "temperature": 0, "ignore_eos": True}
        reply = httpx.post(f"{self._url}/completion", json=body, timeout=300, trust_env=False)
        timings = reply.raise_for_status().json()["timings"]
        return {PROMPT_MS: timings["prompt_per_token_ms"], TOKEN_MS: timings["predicted_per_token_ms"]}


def measured(speeds: RawSpeeds, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Build -> what -> ms of each repeat; one turn before them warms up."""
    found: dict[str, dict[str, list[float]]] = {
        name: {PROMPT_MS: [], TOKEN_MS: []} for name in speeds.contenders
    }
    for turn in range(repeats + 1):
        for name, run in speeds.contenders.items():
            for what, value in run().items():
                if turn:
                    found[name][what].append(value)
    return found
