"""The KV cache of a GGUF target: a llama.cpp context whose cells many sequences share, and what it computes.

Rollback is `llama_memory_seq_rm`, whose answer is checked against what the cache then says it holds.
"""

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from opensled.core.errors import EngineError, UsageError
from opensled.models import llama
from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from verify_server.engine.llamacpp.llama_batch import Flat, LlamaPiece, flat
from verify_server.engine.llamacpp.llama_parked import LONGEST

BATCH = 512  # tokens per llama_decode
MAX_SEQUENCES = int(llama_cpp.llama_max_parallel_sequences())


NO_CELLS = 1  # llama_decode's answer where no cells are left


class CacheFull(EngineError):
    """No cells are left for the tokens of a batch."""


class LlamaCache:
    """A llama.cpp context over a model: KV cells of many sequences, and one reusable batch. For one thread."""

    def __init__(self, model: LlamaModel, cells: int, sequences: int, threads: StepThreads) -> None:
        """The last one of `sequences` is what `save` and `load` need.

        Raises UsageError when there is no memory for `cells` tokens.
        """
        llama.forget_complaints()
        self._num_sequences, self.threads = sequences, threads
        self._vocab_size = model.vocab_size
        self._context = llama_cpp.llama_init_from_model(model.handle, _parameters(cells, sequences))
        if not self._context:
            raise UsageError(
                f"llama.cpp cannot make a KV cache for {cells} tokens: {llama.cause()}; lower --kv-tokens"
            )
        # `model` is an argument so that the weights outlive the context; at exit finalizers run in reverse.
        self.close = weakref.finalize(self, _free, self._context, model)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._window = llama_cpp.llama_model_n_swa(model.handle)
        self._tokens, self._positions, self._counts = (np.zeros(BATCH, np.int32) for _ in range(3))
        self._wanted = np.zeros(BATCH, np.int8)
        # Those of each token, one token after the other
        self._sequences = np.zeros(BATCH * sequences, np.int32)
        self._pointers = np.zeros(BATCH, np.uintp)

    def truncate(self, sequence: int, length: int) -> int:
        """Forget positions >= `length` of a sequence; returns how many are left: `length`, or 0.

        0 when llama.cpp cannot take a part away, or no longer holds all that comes before.
        """
        done = llama_cpp.llama_memory_seq_rm(self._memory, sequence, length, -1)
        if done and self._holds(sequence, length):
            return length
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)  # the whole sequence: always possible
        return 0

    def _holds(self, sequence: int, length: int) -> bool:
        """Whether the cache has all that position `length` attends to, and nothing at or beyond it.

        A sliding window may lose its oldest positions to others once none of the newest looks back so far.
        """
        first = llama_cpp.llama_memory_seq_pos_min(self._memory, sequence)
        last = llama_cpp.llama_memory_seq_pos_max(self._memory, sequence)
        if length == 0:
            return bool(last == -1)
        needed = max(0, length - self._window) if self._window else 0
        return bool(0 <= first <= needed and last == length - 1)

    def clear(self) -> None:
        """All cells are empty, and hold zeros."""
        llama_cpp.llama_memory_clear(self._memory, True)

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Positions [start, stop) of sequence `source` are those of `target` as well, which then ends with them."""
        llama_cpp.llama_memory_seq_rm(self._memory, target, start, -1)
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, start, stop)

    @property
    def longest_saved(self) -> int:
        """Positions that `save` takes at once: llama.cpp leaves out what the last of them does not look back to."""
        return min(LONGEST, self._window or LONGEST)

    def save(self, sequence: int, start: int, stop: int) -> np.ndarray | None:
        """Positions [start, stop) of a sequence as llama.cpp's own bytes, uint8; `load` takes them.

        None: it does not hold all of them any more.
        """
        spare, memory = self._num_sequences - 1, self._memory
        llama_cpp.llama_memory_seq_cp(memory, sequence, spare, start, stop)
        ends = (
            llama_cpp.llama_memory_seq_pos_min(memory, spare),
            llama_cpp.llama_memory_seq_pos_max(memory, spare),
        )
        data = None
        if ends == (start, stop - 1):
            data = np.empty(llama_cpp.llama_state_seq_get_size(self._context, spare), np.uint8)
            llama_cpp.llama_state_seq_get_data(self._context, _bytes(data), data.nbytes, spare)
        llama_cpp.llama_memory_seq_rm(memory, spare, -1, -1)
        return data

    def load(self, data: np.ndarray, sequence: int, start: int, stop: int) -> bool:
        """Gives a sequence that ends at `start` its positions [start, stop) of what was saved.

        False: there are no cells for it, and nothing has changed.
        """
        spare = self._num_sequences - 1
        done = llama_cpp.llama_state_seq_set_data(self._context, _bytes(data), data.nbytes, spare)
        if done:
            llama_cpp.llama_memory_seq_cp(self._memory, spare, sequence, start, stop)
        llama_cpp.llama_memory_seq_rm(self._memory, spare, -1, -1)
        return bool(done)

    def decode(self, pieces: Sequence[LlamaPiece]) -> np.ndarray:
        """One forward pass; logits float32 [wanted rows, vocabulary] in the order of `pieces`.

        The branches of a tree must hold nothing; afterwards each of them is the text and a path. Raises EngineError,
        CacheFull among them; the cache may then hold a part of the tokens, which `truncate` takes away.
        """
        for piece in pieces:
            for branch in piece.branches:
                llama_cpp.llama_memory_seq_cp(self._memory, piece.sequence, branch, 0, piece.start)
        batch = flat(pieces)
        return self.threads.run(len(batch.tokens), lambda threads: self._compute(batch, threads))

    def _compute(self, batch: Flat, threads: int) -> np.ndarray:
        llama_cpp.llama_set_n_threads(self._context, threads, threads)
        logits = np.empty((int(batch.wanted.sum()), self._vocab_size), np.float32)
        done = 0
        for start in range(0, len(batch.tokens), BATCH):
            part = batch.part(start, start + BATCH)
            self._decode(part)
            for index in np.flatnonzero(part.wanted).tolist():
                self._copy_row(index, logits[done])
                done += 1
        return logits

    def _decode(self, part: Flat) -> None:
        count = len(part.tokens)
        for own, given in (
            (self._tokens, part.tokens),
            (self._positions, part.positions),
            (self._counts, part.counts),
            (self._sequences, part.ids),
            (self._wanted, part.wanted),
        ):
            own[: len(given)] = given
        first = np.cumsum(part.counts) - part.counts
        self._pointers[:count] = self._sequences.ctypes.data + self._sequences.itemsize * first
        llama.forget_complaints()
        status = llama_cpp.llama_decode(self._context, self._batch(count))
        if status != 0:
            raise (CacheFull if status == NO_CELLS else EngineError)(
                f"llama.cpp failed on {count} tokens (status {status}): {llama.cause()}"
            )

    def _batch(self, count: int) -> Any:
        """The arrays as llama.cpp's struct; nothing is copied."""
        integers = ctypes.POINTER(ctypes.c_int32)
        return llama_cpp.llama_batch(
            n_tokens=count,
            token=self._tokens.ctypes.data_as(integers),
            embd=None,
            pos=self._positions.ctypes.data_as(integers),
            n_seq_id=self._counts.ctypes.data_as(integers),
            seq_id=self._pointers.ctypes.data_as(ctypes.POINTER(integers)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def _copy_row(self, index: int, row: np.ndarray) -> None:
        """llama.cpp reuses its buffer in the next call."""
        source = llama_cpp.llama_get_logits_ith(self._context, index)
        if not source:
            raise EngineError(f"llama.cpp gave no logits for token {index}: {llama.cause()}")
        ctypes.memmove(row.ctypes.data, source, row.nbytes)


def _bytes(data: np.ndarray) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _parameters(cells: int, sequences: int) -> Any:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_seq_max = max(cells, sequences), sequences  # fewer cells than those: it aborts
    params.n_batch = params.n_ubatch = BATCH
    params.kv_unified = True  # any sequence may take any cell
    params.swa_full = True  # else a window's cache drops what a rollback needs
    return params


def _free(context: Any, model: LlamaModel) -> None:
    llama_cpp.llama_free(context)
