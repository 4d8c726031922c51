"""Drafting with a GGUF model through llama.cpp's low-level bindings.

The high-level `Llama` class copies every logits row and allocates context x vocabulary floats; here one batch
is reused, the newest row is read in place, and rollback is `llama_memory_seq_rm`. A context belongs to one
thread; ctypes releases the GIL while llama.cpp computes.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from edge_client.drafters.base import ModelDrafter
from edge_client.drafters.threads import draft_threads
from opensled.errors import EngineError, UnsupportedModel
from opensled.messages import ModelInfo
from opensled.store import model_file
from opensled.vocabulary import require_same

CONTEXT_CAP = 8192  # positions; the KV cache of a small draft model (0.5B) then takes about 100 MB
BATCH = 512  # tokens per call; a long prompt goes in chunks of this size
SEQUENCE = 0  # the one sequence id of a context
LOG_ERROR = 4  # ggml's GGML_LOG_LEVEL_ERROR

# llama.cpp's latest error lines, to name the cause of a failed call.
_complaints: deque[str] = deque(maxlen=3)


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _: Any) -> None:
    if level == LOG_ERROR:
        _complaints.append(text.decode("utf-8", "replace").strip())


class LlamaCppFactory:
    """One GGUF model in memory; every drafter adds a context (KV cache) of its own."""

    def __init__(self, model: str, threads: int = 0) -> None:
        path = model_file(model, "*.gguf")
        self.name = f"llamacpp {path.name}"
        self.threads = draft_threads(threads)
        self._model = _Model(str(path))

    def check_vocabulary(self, target: ModelInfo) -> None:
        require_same(self.name, self._model.pieces(), target.model_id, target.vocab_size, target.fingerprint)

    def create(self) -> LlamaCppDrafter:
        return LlamaCppDrafter(self._model, self.threads)


class _Model:
    """Owns the loaded weights; freed once, when the last drafter and the factory are gone or Python exits."""

    def __init__(self, path: str) -> None:
        llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        _complaints.clear()
        params = llama_cpp.llama_model_default_params()
        self.handle = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise UnsupportedModel(f"llama.cpp cannot load {path}: {_cause()}; try another GGUF file")
        weakref.finalize(self, llama_cpp.llama_model_free, self.handle)
        if llama_cpp.llama_model_has_encoder(self.handle):
            raise UnsupportedModel(f"{path} has an encoder; a draft model must be decoder-only")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.handle)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    def pieces(self) -> list[str]:
        """The spelling of every token id, as in tokenizer.json."""
        texts = (llama_cpp.llama_vocab_get_text(self.vocabulary, token) for token in range(self.vocab_size))
        return [text.decode("utf-8", "replace") for text in texts]


class LlamaCppDrafter(ModelDrafter):
    """One context and one reusable batch over a shared model."""

    def __init__(self, model: _Model, threads: int) -> None:
        super().__init__(min(CONTEXT_CAP, llama_cpp.llama_model_n_ctx_train(model.handle)))
        params = _parameters(self.context_length, threads)
        self._context = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            raise UnsupportedModel(f"llama.cpp cannot make a context: {_cause()}; try a smaller draft model")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for index in range(BATCH):
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = SEQUENCE
        self._row = ctypes.c_float * model.vocab_size
        # `model` is an argument so that the weights outlive the context; at exit finalizers run in reverse.
        self._free = weakref.finalize(self, _free, self._context, self._batch, model)

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        if not self._free.alive:
            raise EngineError("this drafter is closed; create another one")
        for offset in range(0, len(tokens), BATCH):
            chunk = tokens[offset : offset + BATCH]
            self._decode(chunk, start + offset, last=offset + len(chunk) == len(tokens))
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        address = ctypes.addressof(row.contents)
        return np.frombuffer(self._row.from_address(address), dtype=np.float32)

    def _decode(self, tokens: Sequence[int], start: int, last: bool) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = start + index
            batch.logits[index] = 0
        batch.logits[len(tokens) - 1] = last
        _complaints.clear()
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise EngineError(f"llama.cpp failed on {len(tokens)} draft tokens (status {status}): {_cause()}")

    def truncate(self, length: int) -> int:
        if not self._free.alive:
            return 0
        if llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, length, -1):
            return length
        llama_cpp.llama_memory_clear(self._memory, True)  # recurrent and sliding-window caches cannot go back
        return 0

    def close(self) -> None:
        super().close()
        self._free()


def _parameters(context_length: int, threads: int) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = context_length
    params.n_batch = params.n_ubatch = BATCH
    params.n_threads = params.n_threads_batch = threads
    return params


def _free(context: Any, batch: Any, model: _Model) -> None:
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)


def _cause() -> str:
    return "; ".join(_complaints) or "it gave no reason"
