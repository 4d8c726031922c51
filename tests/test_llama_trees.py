"""Draft trees on the llama.cpp engine: each path has the logits of a fresh context that knows only that path."""

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from opensled.core.messages import DraftBlock
from opensled.core.trees import depth_first, path_to, without_twins
from tests.llamacpp_cache import BLOCK, FAMILIES, NUM_BLOCKS, assert_close, counted, tokens_of
from tests.llamacpp_cache import engine as engine
from tests.llamacpp_cache import fresh as fresh
from tests.llamacpp_cache import gguf_of as gguf_of
from tests.tiny_gguf import VOCABULARY
from tests.tree_drafts import grown, paths, tree
from verify_server.engine.base import Segment
from verify_server.engine.llamacpp import llama_batch
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_engine import BRANCHES, LlamaCppEngine
from verify_server.kv.blocks import BlockPool, BlockTable, OutOfBlocks

MOST = 20  # tokens of a tree


@pytest.fixture(scope="module")
def expected(fresh) -> Callable[[str, Sequence[int], DraftBlock], np.ndarray]:
    """Logits after the text, and after each path of a tree, from a cache that holds nothing else."""

    def rows(family: str, text: Sequence[int], block: DraftBlock) -> np.ndarray:
        grown = paths(block) if block.parents else [block.ids[: i + 1] for i in range(len(block.ids))]
        return np.concatenate([fresh(family, (*text, *path), 1) for path in [(), *grown]])

    return rows


def random_tree(chance: random.Random, most: int = MOST) -> DraftBlock:
    return depth_first(without_twins(grown(chance, 0, (), chance.randint(1, most), VOCABULARY)))


class Life:
    """One session as the server keeps it, whose drafts are trees of which a random path stands."""

    def __init__(self, pool: BlockPool, seed: int, most: int = MOST) -> None:
        self.chance, self.most = random.Random(seed), most
        self.tokens = tokens_of(self.chance.randint(1, 40), seed)
        self.table, self.computed = BlockTable(pool), 0
        self.block = DraftBlock(0)

    def plan(self) -> Segment:
        stop = min(len(self.tokens), self.computed + self.chance.randint(1, 40))
        decides = stop == len(self.tokens)
        self.block = random_tree(self.chance, self.most) if decides else DraftBlock(0)
        self.table.grow(stop + len(self.block.tokens))
        tokens = (*self.tokens[self.computed : stop], *self.block.ids)
        rows = len(self.block.tokens) + 1 if decides else 0
        return Segment(tokens, self.computed, tuple(self.table.blocks), rows, self.block.parents)

    def commit(self, engine: LlamaCppEngine, segment: Segment) -> None:
        stop = segment.start + len(segment.tokens) - len(self.block.tokens)
        if not segment.rows:
            self.computed = stop
            return
        parents = self.block.parents or tuple(range(-1, len(self.block.tokens) - 1))
        path = path_to(parents, self.chance.randrange(-1, len(parents)))
        moves = [(stop + index, stop + place) for place, index in enumerate(path) if index != place]
        if moves:
            engine.compact(segment.blocks, moves)
        self.tokens += [*[self.block.ids[index] for index in path], self.chance.randint(1, VOCABULARY - 1)]
        self.computed = stop + len(path)
        self.table.truncate(self.computed)

    def forget(self) -> None:
        self.table.truncate(0)
        self.computed = 0


def step(engine: LlamaCppEngine, lives: Sequence[Life], check: Callable[[Life, np.ndarray], None]) -> None:
    """Of those for whom there is memory; the others give theirs back."""
    work = []
    for life in lives:
        try:
            work.append((life, life.plan()))
        except OutOfBlocks:
            life.forget()
    if not work:
        return
    logits = engine.forward([segment for _, segment in work]).logits
    for life, segment in work:
        rows, logits = logits[: segment.rows], logits[segment.rows :]
        if segment.rows:
            check(life, rows)
        life.commit(engine, segment)
    assert len(logits) == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_trees_of_sessions_that_come_and_go_have_the_logits_of_their_paths(family, seed, engine, expected):
    loaded, chance = engine(family), random.Random(seed)
    pool = BlockPool(NUM_BLOCKS, BLOCK, loaded.forget if seed else None)
    lives = [Life(pool, 10 * seed + number) for number in range(4)]

    def check(life: Life, rows: np.ndarray) -> None:
        assert_close(rows, expected(family, life.tokens, life.block))

    for turn in range(12):
        step(loaded, chance.sample(lives, chance.randint(1, 3)), check)
        for number, life in enumerate(lives):
            if len(life.tokens) > 80 or chance.random() < 0.05:
                life.forget()
                lives[number] = Life(pool, 1000 * (turn + 1) + number)


def test_more_branches_than_sequences_take_several_passes(engine, expected, monkeypatch):
    """Whatever pass a session was in, its text goes on after the path that stands."""
    loaded, passes = engine("llama"), []
    decode = loaded._cache.decode
    monkeypatch.setattr(loaded._cache, "decode", lambda pieces: passes.append(len(pieces)) or decode(pieces))
    pool = BlockPool(NUM_BLOCKS, BLOCK)
    lives = [Life(pool, number) for number in range(3)]
    wide = tree(0, (60, -1), (61, 0), (62, 1), *[(id, -1) for id in range(3, 40)], (50, 30), (51, 39))
    for life in lives:
        life.tokens = life.tokens[:20]
        life.table.grow(len(life.tokens) + len(wide.tokens))
    segments = [
        Segment((*life.tokens, *wide.ids), 0, tuple(life.table.blocks), len(wide.tokens) + 1, wide.parents)
        for life in lives
    ]
    logits = loaded.forward(segments).logits
    assert len(passes) == 3 and 39 <= BRANCHES < 2 * 39
    for number, life in enumerate(lives):
        rows = logits[number * 43 : (number + 1) * 43]
        assert_close(rows, expected("llama", life.tokens, wide))
        start = len(life.tokens)
        loaded.compact(segments[number].blocks, [(start + 30, start), (start + 40, start + 1)])
        text = [*life.tokens, 30, 50]
        after = loaded.forward([Segment((7,), len(text), segments[number].blocks, 1)]).logits
        assert_close(after, expected("llama", [*text, 7], DraftBlock(0)))


def test_the_path_that_stands_is_not_computed_again(engine, monkeypatch):
    loaded = engine("llama")
    computed = counted(loaded, monkeypatch)
    nodes = tree(0, (5, -1), (6, 0), (7, -1), (8, 2), (9, 3))
    loaded.forward([Segment((1, 2, 3, *nodes.ids), 0, (4,), 6, nodes.parents)])
    loaded.compact((4,), [(5, 3), (6, 4), (7, 5)])
    loaded.forward([Segment((10,), 6, (4,), 1)])
    assert computed == [8, 1]


def test_where_branches_are_computed_wrong_trees_are_not_offered(gguf_of, monkeypatch):
    """A llama.cpp that lets a token see all cells of its session."""

    def blind(piece: LlamaPiece) -> tuple[np.ndarray, np.ndarray]:
        count = len(piece.tokens)
        return np.ones(count, np.int32), np.full(count, piece.sequence, np.int32)

    assert llamacpp.load(gguf_of("llama"), threads=1, kv_tokens=256).info.max_tree == 64
    monkeypatch.setattr(llama_batch, "_members", blind)
    assert llamacpp.load(gguf_of("llama"), threads=1, kv_tokens=256).info.max_tree == 0
