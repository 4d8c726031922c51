"""Drafting with a GGUF model through llama.cpp's C API, of llama_cpp or xllamacpp (opensled/models/llama_api.py).

The high-level `Llama` class copies every logits row and allocates context x vocabulary floats; here one batch
is reused, the newest row is read in place, and rollback is `llama_memory_seq_rm`. A context belongs to one
thread; ctypes releases the GIL while llama.cpp computes.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_client.drafters.base import DrafterOptions, ModelDrafter
from edge_client.drafters.model_factory import ModelFactory
from edge_client.drafters.threads import draft_threads
from edge_client.drafters.window import Window
from opensled.core.errors import EngineError, UnsupportedModel
from opensled.models import llama, widened
from opensled.models.llama import LlamaModel, llama_cpp
from opensled.models.step_threads import StepThreads, up_to
from opensled.models.store import model_file

CONTEXT_CAP = 8192  # positions; the KV cache of a small draft model (0.5B) then takes about 100 MB
BATCH = 512  # tokens per call (llama.cpp's default for a micro-batch); a long prompt goes in such chunks
SEQUENCE = 0  # id of the only sequence of a context


class LlamaCppFactory(ModelFactory):
    """One GGUF model in memory; every drafter adds its own context (KV cache)."""

    def __init__(self, model: str, threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:
        path = model_file(model, "*.gguf")
        self.name = f"llamacpp {path.name}"
        self._window = Window(options.window)
        self._model = LlamaModel(widened.file_to_run(path, widened.AUTO) if options.alone else path)
        self._threads = threads

    def pieces(self) -> list[str]:
        return self._model.pieces()

    def tokenizer(self) -> LlamaTokenizer:
        return LlamaTokenizer(self._model)

    def create_model(self) -> LlamaCppDrafter:
        threads = StepThreads([self._threads]) if self._threads else up_to(draft_threads(0))
        drafter = LlamaCppDrafter(self._model, threads)
        drafter.prepare(self._window)
        return drafter


class LlamaTokenizer:
    """See `DraftTokenizer`."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.size, self.frame, self.ends = model.vocab_size, model.frame(), frozenset(model.eos_ids())

    def encode_rendered(self, text: str) -> list[int]:
        return self._model.tokenize(text)

    def token_bytes(self, token: int) -> bytes:
        return self._model.token_bytes(token)

    def token_of(self, data: bytes) -> int | None:
        """llama.cpp does not tell: it tokenizes whole texts, and may put a space in front."""
        return None


class LlamaCppDrafter(ModelDrafter):
    """One context and one reusable batch over a shared model."""

    def __init__(self, model: LlamaModel, threads: StepThreads) -> None:
        super().__init__(min(CONTEXT_CAP, model.context_length))
        self._threads = threads
        params = _parameters(self.context_length)
        self._context = llama_cpp.llama_init_from_model(model.handle, params)
        if not self._context:
            raise UnsupportedModel(
                f"llama.cpp cannot make a context: {llama.cause()}; try a smaller draft model"
            )
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for index in range(BATCH):
            self._batch.n_seq_id[index] = 1
            self._batch.seq_id[index][0] = SEQUENCE
        # Kept: each access to a field of a ctypes structure makes a new object, which is slow beside a small model.
        self._ids, self._positions, self._wanted = self._batch.token, self._batch.pos, self._batch.logits
        self._row: Any = ctypes.c_float * model.vocab_size
        # `model` is an argument so that the weights outlive the context; at exit finalizers run in reverse.
        self._free = weakref.finalize(self, _free, self._context, self._batch, model)

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        for offset in range(0, len(tokens), BATCH):
            chunk = tokens[offset : offset + BATCH]
            self._decode(chunk, start + offset, wanted=offset + len(chunk) == len(tokens))
        return self._logits(-1)

    def forward_rows(self, tokens: Sequence[int], start: int, wanted: int) -> list[np.ndarray]:
        """Like `forward`; the logits [vocabulary] after each of the last `wanted` tokens, at most BATCH."""
        first = len(tokens) % BATCH or BATCH  # the short chunk comes first: all the rows are of the last one
        for begin in (0, *range(first, len(tokens), BATCH)):
            end = begin + BATCH if begin else first
            self._decode(tokens[begin:end], start + begin, wanted if end >= len(tokens) else 0)
        return [self._logits(row) for row in range(-wanted, 0)]

    def _logits(self, row: int) -> np.ndarray:
        """A row of the last call's logits [vocabulary]; -1 is the last one."""
        address = ctypes.addressof(llama_cpp.llama_get_logits_ith(self._context, row).contents)
        return np.frombuffer(self._row.from_address(address), dtype=np.float32)

    def _decode(self, tokens: Sequence[int], start: int, wanted: int) -> None:
        """Compute one batch; logits of its last `wanted` tokens. Raises EngineError."""
        if not self._free.alive:
            raise EngineError("this drafter is closed; create another one")
        self._batch.n_tokens = len(tokens)
        for index, token in enumerate(tokens):
            self._ids[index], self._positions[index], self._wanted[index] = token, start + index, 0
        for index in range(len(tokens) - wanted, len(tokens)):
            self._wanted[index] = 1
        llama.forget_complaints()
        status = self._threads.run(len(tokens), self._compute)
        if status != 0:
            raise EngineError(
                f"llama.cpp failed on {len(tokens)} draft tokens (status {status}): {llama.cause()}"
            )

    def _compute(self, threads: int) -> int:
        """llama.cpp's status."""
        llama_cpp.llama_set_n_threads(self._context, threads, threads)
        return int(llama_cpp.llama_decode(self._context, self._batch))

    def truncate(self, length: int) -> int:
        if not self._free.alive:
            return 0
        if llama_cpp.llama_memory_seq_rm(self._memory, SEQUENCE, length, -1):
            return length
        # Recurrent and sliding-window caches cannot roll back
        llama_cpp.llama_memory_clear(self._memory, True)
        return 0

    def close(self) -> None:
        super().close()
        self._free()


def _parameters(context_length: int) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = context_length
    params.n_batch = params.n_ubatch = BATCH
    return params


def _free(context: Any, batch: Any, model: LlamaModel) -> None:
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)


def build() -> tuple[str, bool]:
    """How the installed llama.cpp was built: its features ("AVX2 = 1 | ..."), and whether it can use a GPU."""
    llama.listen()
    features: bytes = llama_cpp.llama_print_system_info()
    return features.decode("utf-8", "replace"), bool(llama_cpp.llama_supports_gpu_offload())
