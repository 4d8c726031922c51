"""Plain llama_cpp and plain transformers, without a server: one chat at a time, greedily, in a process of their own."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lab.benchmarks.program import SPAWN, spawned

Answering = Callable[[dict[str, Any]], Iterator[object]]  # the body of a request -> each token of its answer
PLAIN = {
    "llamacpp": "plain llama_cpp",
    "torch": "plain transformers",
}  # engine -> what computes the same weights


@dataclass
class PlainContender:
    """What `peer_chats.Contender` is for a server."""

    ends: Connection
    first_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    tokens: int = 0

    def speed(self, bodies: Sequence[dict[str, Any]]) -> float:
        """Output tokens/s of one answer."""
        self.ends.send(bodies[0])
        first_s, seconds, cpu_s, tokens = self.ends.recv()
        self.first_s.append(first_s)
        self.cpu_s, self.tokens = self.cpu_s + cpu_s, self.tokens + tokens
        return float(tokens / seconds)

    def forget(self) -> None:
        """What was asked so far only warmed up."""
        self.first_s.clear()
        self.cpu_s, self.tokens = 0.0, 0


@contextmanager
def plain(engine: str, model: Path, threads: int, context: int) -> Iterator[PlainContender]:
    """One of them, loaded."""
    ours, theirs = SPAWN.Pipe()
    process = spawned(_answer_all, theirs, engine, model, threads, context)
    theirs.close()
    try:
        ours.recv()
        yield PlainContender(ours)
    finally:
        ours.close()
        process.join(10)
        process.kill()


def _answer_all(ends: Connection, engine: str, model: Path, threads: int, context: int) -> None:
    answer = _llama(model, threads, context) if engine == "llamacpp" else _transformers(model, threads)
    ends.send(None)
    while True:
        try:
            body = ends.recv()
        except EOFError:
            return
        began, cpu, first, tokens = time.perf_counter(), time.process_time(), 0.0, 0
        for _ in answer(body):
            first = first or time.perf_counter() - began
            tokens += 1
        ends.send((first, time.perf_counter() - began, time.process_time() - cpu, tokens))


def _llama(model: Path, threads: int, context: int) -> Answering:
    from llama_cpp import Llama

    network = Llama(str(model), n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False)
    endless = {network.token_eos(): -100.0}  # as ignore_eos

    def answer(body: dict[str, Any]) -> Iterator[object]:
        asked = {"max_tokens": body["max_tokens"], "temperature": 0.0, "logit_bias": endless, "stream": True}
        pieces: Any = network.create_chat_completion(body["messages"], **asked)
        yield from (piece for piece in pieces if piece["choices"][0]["delta"].get("content"))

    return answer


def _transformers(model: Path, threads: int) -> Answering:
    import torch

    from lab.testbed.gguf_reference import GgufReference

    torch.set_num_threads(threads)
    reference = GgufReference(model)
    network = reference.model.to(torch.bfloat16)

    def answer(body: dict[str, Any]) -> Iterator[object]:
        ids, cache = torch.tensor([reference.render_chat(body["messages"])]), None
        for _ in range(body["max_tokens"]):
            with torch.inference_mode():
                out = network(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
            yield reference.decode(ids[0].tolist())

    return answer
