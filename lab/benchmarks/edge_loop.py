"""Tokens per second of drafting with llama.cpp, against a bare decode loop with argmax on the same file."""

import ctypes
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from edge_client.drafters.llamacpp import LlamaCppFactory
from edge_client.lengths.base import pull_tokens
from edge_client.lengths.fixed import FixedLength
from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.training.export_gguf import write_gguf
from opensled.core.errors import EngineError
from opensled.core.messages import SamplingParams
from opensled.core.sampling import Sampler
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file, model_path

BLOCK = 4  # draft tokens of a block
PROMPT = 256  # tokens in the context before the first drafted one
THREADS = 1
REQUIRED = 0.95


def measure(quick: bool) -> Figure:
    """Two sizes of model: the smaller, the more an overhead shows."""
    tokens, repeats = (64, 2) if quick else (512, 15)
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {"tiny-draft": model_file("tiny-draft", "*.gguf")}
        if not quick:
            files["tiny"] = Path(folder) / "tiny-q8_0.gguf"
            write_gguf(model_path("tiny"), files["tiny"])
        for name, path in files.items():
            samples.update(in_turns(_contenders(name, path, tokens), repeats))
    return Figure(
        title="Edge loop",
        unit="tokens/s",
        more_is_better=True,
        compared=(
            "`ModelDrafter.propose`, `pull_tokens` and `commit` of the truth in blocks of 4, without the network, "
            "against `llama_decode` + numpy argmax on the logits in place: same GGUF, context, thread, T = 0. Full "
            "acceptance commits what was proposed and computes the very same tokens; with a rejection the last token "
            "of every block is replaced by another one; with a bonus a fifth token comes with every four drafted "
            "(only the drafted ones are counted)."
        ),
        loses=(
            "Always a little: a draft token costs Python on top of llama.cpp, a few microseconds, so the smallest "
            "models lose most. A bonus token has to be computed by the device as well, before it can draft on."
        ),
        samples=samples,
        ratios=tuple(
            Comparison(f"{name}, {case}", f"{name}, {case}", f"{name}, bare loop", required)
            for name in files
            for case, required in (("full acceptance", REQUIRED), ("rejection", None), ("bonus", None))
        ),
        facts={"threads": THREADS, "prompt": PROMPT, "tokens of a repeat": tokens},
    )


def _contenders(name: str, path: Path, tokens: int) -> dict[str, Callable[[], float]]:
    bare, drafting = Bare(path), DraftLoop(path)
    prompt = np.random.default_rng(0).integers(20, bare.model.vocab_size, PROMPT).tolist()
    return {
        f"{name}, bare loop": lambda: bare.speed(prompt, tokens),
        f"{name}, full acceptance": lambda: drafting.speed(prompt, tokens, lambda block: block),
        f"{name}, rejection": lambda: drafting.speed(
            prompt, tokens, lambda block: [*block[:-1], block[-1] - 1 if block[-1] else 1]
        ),
        f"{name}, bonus": lambda: drafting.speed(prompt, tokens, lambda block: [*block, block[0]]),
    }


class Bare:
    """The plain fast loop: decode one token, take the argmax in place, repeat."""

    def __init__(self, path: Path) -> None:
        self.model = LlamaModel(path)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = llama_cpp.llama_model_n_ctx_train(self.model.handle)
        params.n_batch = params.n_ubatch = PROMPT
        params.n_threads = params.n_threads_batch = THREADS
        self.context = llama_cpp.llama_init_from_model(self.model.handle, params)
        self.batch: Any = llama_cpp.llama_batch_init(PROMPT, 0, 1)
        for index in range(PROMPT):
            self.batch.n_seq_id[index], self.batch.seq_id[index][0] = 1, 0
        self.row: Any = ctypes.c_float * self.model.vocab_size

    def speed(self, prompt: list[int], tokens: int) -> float:
        """Tokens per second after the prompt and a first token."""
        token = self._first(prompt)
        batch = self.batch
        batch.n_tokens, batch.logits[0] = 1, 1
        started = time.perf_counter()
        for position in range(len(prompt), len(prompt) + tokens - 1):
            batch.token[0], batch.pos[0] = token, position
            token = self._decode()
        return (tokens - 1) / (time.perf_counter() - started)

    def _first(self, prompt: list[int]) -> int:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.batch.n_tokens = len(prompt)
        for index, token in enumerate(prompt):
            self.batch.token[index], self.batch.pos[index] = token, index
            self.batch.logits[index] = index == len(prompt) - 1
        return self._decode()

    def _decode(self) -> int:
        """Compute the batch; the likeliest next token."""
        if llama_cpp.llama_decode(self.context, self.batch):
            raise EngineError("llama.cpp failed in the bare loop")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        view = self.row.from_address(ctypes.addressof(logits.contents))
        return int(np.frombuffer(view, dtype=np.float32).argmax())


class DraftLoop:
    """Our drafter, asked as the edge loop asks it."""

    def __init__(self, path: Path) -> None:
        self.drafter = LlamaCppFactory(str(path), THREADS).create()
        self.stop = FixedLength(BLOCK)

    def speed(self, prompt: list[int], tokens: int, verdict: Callable[[list[int]], list[int]]) -> float:
        """Drafted tokens per second after the prompt and a first token; the truth about a block is `verdict` of it."""
        sampler = Sampler(
            SamplingParams(temperature=0), bytes(16), with_confidence=self.stop.needs_confidence
        )
        self.drafter.begin((), sampler)  # forget all, so that the prompt is computed as in the bare loop
        self.drafter.begin(prompt, sampler)
        next(self.drafter.propose())
        started = time.perf_counter()
        for _ in range(tokens // BLOCK):
            block = tuple(pull_tokens(self.stop, self.drafter.propose(), BLOCK, lambda: False))
            self.drafter.commit(verdict([token.id for token in block]))
        return (tokens - 1) / (time.perf_counter() - started)
