"""Shared KV on the llama.cpp engine: every row is what a fresh context gives that knows its text only."""

import llama_cpp
import numpy as np
import pytest

from tests.llamacpp_cache import (
    BLOCK,
    FAMILIES,
    HEAD,
    NUM_BLOCKS,
    Life,
    assert_close,
    counted,
    never_meet,
    tokens_of,
)
from tests.llamacpp_cache import engine as engine
from tests.llamacpp_cache import fresh as fresh
from tests.llamacpp_cache import gguf_of as gguf_of
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.llamacpp.llama_cache import CacheFull, LlamaCache
from verify_server.engine.llamacpp.llama_engine import LlamaCppEngine
from verify_server.kv.blocks import BlockPool

KEY = b"a secret of this test"


@pytest.mark.parametrize("sequences", [llamacpp.SEQUENCES, 3], ids=["enough sequences", "three sequences"])
@pytest.mark.parametrize("hears", [True, False], ids=["hears of free blocks", "finds out"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 2))])
def test_texts_that_begin_alike_come_roll_back_and_go(
    seed, family, hears, sequences, engine, fresh, monkeypatch
):
    monkeypatch.setattr(llamacpp, "SEQUENCES", sequences)
    loaded = engine(family)
    hearing = (loaded.forget, KEY, loaded.rest) if hears else (None, KEY)
    pool = BlockPool(NUM_BLOCKS, BLOCK, *hearing)
    never_meet(loaded, pool, seed, 80, lambda text: fresh(family, text))
    assert pool.hits > 0


@pytest.fixture
def alone(engine, monkeypatch):
    """An engine, the tokens that it computes pass by pass, and its pool."""
    loaded = engine("llama")
    return loaded, counted(loaded, monkeypatch), BlockPool(NUM_BLOCKS, BLOCK, loaded.forget, KEY, loaded.rest)


def told(loaded: LlamaCppEngine, life: Life, **plan) -> np.ndarray:
    segment = life.plan(**plan)
    logits = loaded.forward([segment]).logits
    life.commit(segment)
    return logits


def test_what_another_session_computed_is_not_computed_again(alone, fresh):
    """While that one lives, and after it."""
    loaded, computed, pool = alone
    first, second, third = (Life(pool, (*HEAD, number)) for number in (7, 8, 9))
    told(loaded, first)
    assert_close(told(loaded, second), fresh("llama", (*HEAD, 8))[-1:])
    first.forget()
    assert_close(told(loaded, third), fresh("llama", (*HEAD, 9))[-1:])
    assert computed == [41, 41 - 32, 41 - 32]


def test_a_rollback_of_one_takes_nothing_from_another(alone, fresh):
    loaded, computed, pool = alone
    first, second = Life(pool, (*HEAD, 7)), Life(pool, (*HEAD, 8))
    told(loaded, first)
    told(loaded, second, draft=[3] * 12)  # beyond a block; nothing of it stands
    assert_close(told(loaded, first, draft=[4] * 3), fresh("llama", (*HEAD, 7, 5, 4, 4, 4))[-4:])
    assert_close(told(loaded, second), fresh("llama", (*HEAD, 8, 5))[-1:])
    assert computed == [41, 9 + 12, 4, 1]


def test_tenants_share_nothing(alone):
    loaded, computed, pool = alone
    for tenant in "ab":
        told(loaded, Life(pool, (*HEAD, 7), tenant=tenant))
    assert computed == [41, 41] and pool.hits == 0


def test_a_preempted_session_finds_what_others_still_hold(alone, fresh):
    loaded, computed, pool = alone
    first, second = Life(pool, (*HEAD, 7)), Life(pool, (*HEAD, 8))
    told(loaded, first)
    told(loaded, second)
    second.forget()
    assert_close(told(loaded, second), fresh("llama", (*HEAD, 8, 5))[-1:])
    assert computed == [41, 9, 10]


def test_blocks_with_the_same_text_serve_each_other(alone, fresh):
    """Two sessions computed the same text at once; a third one has the first block of one and the next of the other."""
    loaded, computed, pool = alone
    text = (*HEAD[:16], *tokens_of(16, 1), 5)
    first, second = Life(pool, (*HEAD[:16], *tokens_of(16, 2), 5)), Life(pool, text)
    segments = [first.plan(), second.plan()]
    loaded.forward(segments)
    for life, segment in zip((first, second), segments):
        life.commit(segment)
    third = Life(pool, (*text, 6))
    assert_close(told(loaded, third), fresh("llama", third.tokens[:-1])[-1:])
    assert third.table.blocks[:2] == [first.table.blocks[0], second.table.blocks[1]]
    assert computed == [66, 2]


def test_a_cache_that_is_full_of_the_same_text_lets_go_of_what_is_idle(alone, fresh, monkeypatch):
    loaded, computed, pool = alone
    told(loaded, Life(pool, (*HEAD, 7)))
    real, failed = LlamaCache._decode, []

    def full_once(self: LlamaCache, part) -> None:
        if len(failed) < 2:
            failed.append(self)
            raise CacheFull("no cells")
        real(self, part)

    monkeypatch.setattr(LlamaCache, "_decode", full_once)
    second = Life(pool, (*HEAD, 8))
    assert_close(told(loaded, second), fresh("llama", (*HEAD, 8))[-1:])
    assert len(failed) == 2 and computed == [41, 9, 9, 41]


def cells(loaded: LlamaCppEngine) -> int:
    """How many positions the cache holds, those of several sequences counted for each."""
    memory = loaded._cache._memory
    last = [llama_cpp.llama_memory_seq_pos_max(memory, number) for number in range(llamacpp.SEQUENCES)]
    return sum(position + 1 for position in last)


def parked_bytes(loaded: LlamaCppEngine) -> int:
    return sum({id(run): run.data.nbytes for run in loaded._parked._runs.values()}.values())


def test_a_text_that_is_over_leaves_the_cells_and_comes_back(alone, fresh):
    """Attention looks past their cells."""
    loaded, computed, pool = alone
    text = tokens_of(100, 3)
    life, other = Life(pool, text), Life(pool, tokens_of(20, 4))
    told(loaded, life)
    life.forget()
    told(loaded, other)
    assert cells(loaded) == 20 and pool.num_free == NUM_BLOCKS - 2
    again = Life(pool, text)
    assert_close(told(loaded, again), fresh("llama", text)[-1:])
    assert computed == [100, 20, 100 - 6 * BLOCK] and pool.hits == 6 * BLOCK


def test_a_text_that_goes_on_at_once_is_not_copied(alone, monkeypatch):
    loaded, computed, pool = alone
    saved = []
    monkeypatch.setattr(LlamaCache, "save", lambda *args: saved.append(args))
    life = Life(pool, tokens_of(100, 3))
    told(loaded, life)
    life.forget()
    told(loaded, Life(pool, [*tokens_of(100, 3), 7]))
    assert computed == [100, 101 - 6 * BLOCK] and not saved


def test_a_head_is_parked_once_and_serves_all(alone, fresh):
    """Whether its first user is there still, or gone."""
    loaded, computed, pool = alone
    lives = [Life(pool, (*HEAD, *tokens_of(30, number))) for number in range(3)]
    for life in lives:
        told(loaded, life)
    for life in lives:
        life.forget()
    other = Life(pool, tokens_of(5, 9))
    told(loaded, other)
    assert cells(loaded) == 5
    one = parked_bytes(loaded)
    told(loaded, other)
    computed.clear()
    for number in range(3):
        life = Life(pool, (*HEAD, *tokens_of(30, number)))
        assert_close(told(loaded, life), fresh("llama", life.tokens[:-1])[-1:])
    assert computed == [70 - 4 * BLOCK] * 3 and parked_bytes(loaded) == one


def test_what_is_forgotten_takes_no_memory(alone):
    loaded, _, pool = alone
    for number in range(30):
        life = Life(pool, tokens_of(90, number))
        told(loaded, life)
        life.forget()
    told(loaded, Life(pool, tokens_of(16 * NUM_BLOCKS - 20, 50)))
    blocks = {block for block in range(NUM_BLOCKS) if block in loaded._parked._runs}
    assert len(blocks) <= pool.states()["cached"]


def test_where_no_cells_are_left_the_text_is_computed_again(alone, fresh, monkeypatch):
    loaded, computed, pool = alone
    life = Life(pool, tokens_of(100, 3))
    told(loaded, life)
    life.forget()
    told(loaded, Life(pool, tokens_of(20, 4)))
    monkeypatch.setattr(LlamaCache, "load", lambda *args: False)
    again = Life(pool, tokens_of(100, 3))
    assert_close(told(loaded, again), fresh("llama", tokens_of(100, 3))[-1:])
    assert computed == [100, 20, 100]
