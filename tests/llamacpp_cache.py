"""Engines of llama.cpp on small random models, and a fresh context that knows one sequence only."""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from tests.tiny_gguf import VOCABULARY, random_gguf
from verify_server.engine.base import Segment
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_cache import LlamaCache
from verify_server.engine.llamacpp.llama_engine import LlamaCppEngine
from verify_server.kv.blocks import BlockPool, BlockTable, OutOfBlocks

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
        return LlamaCache(LlamaModel(gguf_of(family)), cells=256, sequences=1, threads=StepThreads([1]))

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


HEAD = tuple(tokens_of(40, 99))  # that texts have in common


class Life:
    """One session as the server keeps it: it begins like others, and publishes what it committed."""

    def __init__(self, pool: BlockPool, tokens: Sequence[int], seed: int = 0, tenant: str = "a") -> None:
        self.chance = random.Random(seed)
        self.tokens, self.draft = list(tokens), []
        self.table = BlockTable(pool, tenant)
        self.computed = 0

    def plan(self, most: int = 100, draft: Sequence[int] = (), rows: int = 0) -> Segment:
        """A chunk of what is known, of whose last tokens `rows` are asked, or the newest token with a draft."""
        self.computed = self.table.adopt(self.tokens, self.computed)
        stop = min(len(self.tokens), self.computed + most)
        self.draft = list(draft) if stop == len(self.tokens) else []
        self.table.grow(stop + len(self.draft))
        tokens = (*self.tokens[self.computed : stop], *self.draft)
        rows = len(self.draft) + 1 if stop == len(self.tokens) else min(rows, len(tokens))
        return Segment(tokens, self.computed, tuple(self.table.blocks), rows)

    def commit(self, segment: Segment, accepted: int = 0, bonus: int = 5) -> None:
        self.computed = segment.start + len(segment.tokens) - len(self.draft) + accepted
        self.tokens += [*self.draft[:accepted], bonus] if segment.rows else []
        self.table.truncate(self.computed)
        self.table.publish(self.tokens, min(self.computed, len(self.tokens) - 1))

    def forget(self) -> None:
        self.table.clear()
        self.computed = 0

    def random_plan(self) -> Segment:
        draft = tokens_of(self.chance.randint(0, 6), self.chance.random())
        return self.plan(self.chance.randint(1, 40), draft, self.chance.choice((0, 0, 3, 40)))

    def random_commit(self, segment: Segment) -> None:
        self.commit(segment, self.chance.randint(0, len(self.draft)), self.chance.randint(1, VOCABULARY - 1))


def steps(seed: int, pool: BlockPool) -> Iterator[list[tuple[Life, Segment]]]:
    """Sessions of two tenants that begin alike, or where an earlier one ended; they lose their KV, and go."""
    chance, lives = random.Random(seed), []
    said: list[Sequence[int]] = [HEAD]
    for number in range(10_000):
        if len(lives) < 5 and chance.random() < 0.5:
            head = chance.choice(said)
            text = [*head[: chance.randint(1, len(head))], *tokens_of(chance.randint(1, 20), number)]
            lives.append(Life(pool, text[:90], number, chance.choice("ab")))
        for life in list(lives):
            if len(life.tokens) > 100 or chance.random() < 0.05:
                said = [*said[-4:], HEAD, life.tokens]
                life.forget()
                lives.remove(life)
            elif chance.random() < 0.08:
                life.forget()
        work = []
        for life in chance.sample(lives, chance.randint(0, len(lives))):
            try:
                work.append((life, life.random_plan()))
            except OutOfBlocks:
                life.forget()
        if work:
            yield work


def never_meet(
    loaded: LlamaCppEngine,
    pool: BlockPool,
    seed: int,
    count: int,
    expected: Callable[[tuple[int, ...]], np.ndarray],
) -> None:
    """Sessions that come, roll back, lose their KV and go: each row is what is `expected` of its text alone."""
    schedule = steps(seed, pool)
    for _ in range(count):
        work = next(schedule)
        logits = loaded.forward([segment for _, segment in work]).logits
        for life, segment in work:
            rows, logits = logits[: segment.rows], logits[segment.rows :]
            if segment.rows:
                text = (*life.tokens[: segment.start], *segment.tokens)
                assert_close(rows, expected(text)[-segment.rows :])
            life.random_commit(segment)
        assert len(logits) == 0


def counted(loaded: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens its llama.cpp will be given, pass by pass."""
    counts: list[int] = []
    real = loaded._cache.decode

    def decode(pieces: Sequence[LlamaPiece]) -> np.ndarray:
        counts.append(sum(len(piece.tokens) for piece in pieces))
        return real(pieces)

    monkeypatch.setattr(loaded._cache, "decode", decode)
    return counts
