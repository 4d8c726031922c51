"""The llama.cpp engine against a fresh context that knows one sequence only, and against itself in other batches."""

from functools import partial

import llama_cpp
import numpy as np
import pytest

from opensled.core.errors import EngineError, NotFound, SelfTestFailed, UnsupportedModel, UsageError
from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from opensled.models.store import model_file
from tests.llamacpp_cache import BLOCK, FAMILIES, NUM_BLOCKS, assert_close, never_meet, tokens_of
from tests.llamacpp_cache import engine as engine
from tests.llamacpp_cache import fresh as fresh
from tests.llamacpp_cache import gguf_of as gguf_of
from tests.tiny_gguf import VOCABULARY, WINDOW
from verify_server.engine.base import Segment
from verify_server.engine.llamacpp import llama_engine as llamacpp
from verify_server.engine.llamacpp import llama_probe
from verify_server.engine.llamacpp.llama_cache import BATCH, LlamaCache
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.block_target import BlockTarget

FIRST, SECOND = 0, 1  # the sequences that an engine takes first
TINY = model_file("tiny", "*.gguf")


@pytest.mark.parametrize("hears", [True, False], ids=["hears of free blocks", "finds out"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_sessions_that_come_roll_back_lose_their_kv_and_go_never_meet(family, seed, hears, engine, fresh):
    loaded = engine(family)
    pool = BlockPool(NUM_BLOCKS, BLOCK, loaded.forget if hears else None)
    never_meet(loaded, pool, seed, 60, lambda text: fresh(family, text))


def test_a_prompt_longer_than_a_batch_gives_all_its_rows(fresh, gguf_of):
    loaded = llamacpp.load(gguf_of("llama"), threads=1, kv_tokens=2048)
    tokens, other = tokens_of(200, 1), tokens_of(3, 2)
    long = tuple(tokens_of(BATCH, 3))
    segments = [
        Segment(long[:400], 0, tuple(range(30)), 0),
        Segment(tuple(tokens), 0, tuple(range(30, 50)), 200),
        Segment(tuple(other), 0, (60,), 2),
    ]
    logits = loaded.forward(segments).logits
    assert_close(logits[:200], fresh("llama", tokens))
    assert_close(logits[200:], fresh("llama", other)[1:])


@pytest.mark.parametrize("family", FAMILIES)
def test_unchanged_batch_shapes_give_the_same_bits(family, engine):
    one, other = engine(family), engine(family)
    for start in range(0, 60, 6):
        segments = [
            Segment(tuple(tokens_of(60, 1)[start : start + 6]), start, (0, 1, 2, 3), 6),
            Segment(tuple(tokens_of(60, 2)[start : start + 6]), start, (4, 5, 6, 7), 1),
        ]
        assert np.array_equal(one.forward(segments).logits, other.forward(segments).logits)


def test_a_failed_step_loses_nothing_but_the_step(engine, fresh, monkeypatch):
    loaded, tokens = engine("llama"), tokens_of(50, 4)
    first, second = (
        Segment(tuple(tokens[:30]), 0, (0, 1), 0),
        Segment(tuple(tokens[30:]), 30, (0, 1, 2, 3), 20),
    )
    loaded.forward([first])
    real, calls = llama_cpp.llama_decode, []

    def failing(context, batch):
        calls.append(real(context, batch))
        return -3

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp, "llama_decode", failing)
        with pytest.raises(EngineError, match="status -3"):
            loaded.forward([second])
    assert_close(loaded.forward([second]).logits, fresh("llama", tokens)[30:])
    assert calls == [0]


def test_what_the_cache_lost_is_computed_again(engine, fresh):
    """As a sliding window does whose oldest cells went to others, or a rollback that llama.cpp refuses."""
    loaded, tokens = engine("llama"), tokens_of(50, 5)
    loaded.forward([Segment(tuple(tokens[:30]), 0, (3, 4), 0)])
    llama_cpp.llama_memory_seq_rm(loaded._cache._memory, FIRST, 4, 9)
    llama_cpp.llama_memory_seq_rm(loaded._cache._memory, FIRST, 20, -1)
    segment = Segment(tuple(tokens[28:]), 28, (3, 4, 5, 6), 22)
    assert_close(loaded.forward([segment]).logits, fresh("llama", tokens)[28:])


def test_a_rollback_beyond_the_window_is_right(engine, fresh):
    """Others take the cells that a window has left behind; the session goes back to where it needs them."""
    loaded, tokens = engine("gemma2"), tokens_of(100, 6)
    loaded.forward([Segment(tuple(tokens), 0, tuple(range(7)), 0)])
    for block in range(7, 16):
        loaded.forward([Segment(tuple(tokens_of(16, block)), 0, (block,), 0)])
    back = 100 - WINDOW - 10
    segment = Segment(tuple(tokens[back:]), back, tuple(range(7)), 100 - back)
    assert_close(loaded.forward([segment]).logits, fresh("gemma2", tokens)[back:])


@pytest.mark.parametrize(
    ("segment", "cause"),
    [
        (Segment((-1,), 0, (0,), 1), "token ids"),
        (Segment((VOCABULARY,), 0, (0,), 1), "token ids"),
        (Segment((5,), 3, (0,), 1), "position 3, but 0"),
        (Segment((5,) * 17, 0, (0,), 1), "do not cover"),
        (Segment((5,), 0, (16,), 1), "KV blocks"),
        (Segment((5,) * 20, 0, (2, 2), 1), "KV blocks"),
    ],
)
def test_what_cannot_be_right_is_refused_before_the_step(segment, cause, engine):
    with pytest.raises(EngineError, match=cause):
        engine("llama").forward([segment])


def test_another_sessions_kv_is_never_continued(engine):
    """Blocks that went to another session took its KV with them."""
    loaded = engine("llama")
    loaded.forward([Segment((5,) * 20, 0, (0, 1), 0)])
    loaded.forward([Segment((6,) * 20, 0, (7, 0), 0)])
    with pytest.raises(EngineError, match="position 20, but 0"):
        loaded.forward([Segment((5,), 20, (0, 1), 1)])


def test_what_a_session_gives_back_leaves_the_cache(engine):
    """Attention looks at every taken cell, so what is over must not stay; what a rollback keeps must."""
    loaded = engine("llama")
    pool = BlockTarget(loaded).pool
    table, other = BlockTable(pool), BlockTable(pool)
    for each, length in ((table, 50), (other, 20)):
        each.grow(length)
        loaded.forward([Segment((7,) * length, 0, tuple(each.blocks), 0)])
    last_of = partial(llama_cpp.llama_memory_seq_pos_max, loaded._cache._memory)
    table.truncate(20)
    loaded.forward([Segment((5,), 20, tuple(other.blocks), 0)])
    assert last_of(FIRST) == 2 * BLOCK - 1
    table.truncate(0)
    loaded.forward([Segment((5,), 21, tuple(other.blocks), 0)])
    assert last_of(FIRST) == -1
    assert last_of(SECOND) == 21


# What is refused at load


@pytest.mark.parametrize(("family", "cause"), [("mamba", "recurrent"), ("t5", "encoder")])
def test_families_that_would_go_wrong_are_refused(family, cause, gguf_of):
    with pytest.raises(UnsupportedModel, match=cause):
        llamacpp.load(gguf_of(family), threads=1)


def test_the_probe_finds_state_that_nobody_declared(gguf_of, monkeypatch):
    monkeypatch.setattr(LlamaModel, "state", lambda self: "")
    with pytest.raises(UnsupportedModel, match="cannot take 5 tokens back"):
        llamacpp.load(gguf_of("mamba"), threads=1)


def test_the_probe_finds_a_rollback_that_did_not_happen(gguf_of, monkeypatch):
    def shifted(self: LlamaCache, sequence: int, length: int) -> int:
        """Rejected tokens stay, as if they had been at other positions."""
        llama_cpp.llama_memory_seq_add(self._memory, sequence, length, -1, -4)
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, length, -1)
        return length

    monkeypatch.setattr(LlamaCache, "truncate", shifted)
    with pytest.raises(SelfTestFailed, match="rollback"):
        llama_probe.run(LlamaModel(gguf_of("llama")), threads=StepThreads([1]))


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(UnsupportedModel, match="cannot load"):
        llamacpp.load(path)


@pytest.mark.parametrize(
    ("flags", "kind", "cause"),
    [
        ({"dtype": "float64"}, UsageError, "--dtype float64"),
        ({"numerics": "exact"}, UsageError, "--numerics exact"),
        ({"device": "cuda:1"}, UsageError, "CUDA_VISIBLE_DEVICES"),
        ({"device": "cpu", "gpu_layers": 3}, UsageError, "gpu"),
        ({"model": "ORG/MODEL"}, NotFound, "opensled pull ORG/MODEL"),
        ({"model": "./nothing.gguf"}, NotFound, "is missing"),
    ],
)
def test_what_it_cannot_obey_is_refused_by_name(flags, kind, cause):
    config = ServeConfig(**{"model": str(TINY), "engine": "llamacpp", **flags})
    with pytest.raises(kind, match=f"(?i){cause}"):
        ENGINES.get("llamacpp")(config)


def test_the_torch_engine_refuses_gpu_layers():
    with pytest.raises(UsageError, match="--gpu-layers"):
        ENGINES.get("torch")(ServeConfig(gpu_layers=3))


def test_info_states_the_model():
    target = ENGINES.get("llamacpp")(ServeConfig(model="tiny", engine="llamacpp", threads=1, kv_tokens=9000))
    info = target.engine.info
    assert (target.model_id, info.vocab_size, info.context_length, info.eos_ids) == ("tiny", 2048, 1024, (0,))
    assert (info.numerics, info.dtype, info.device) == ("fast", "F16", "cpu")
    assert info.num_blocks * info.block_size >= 9000 and info.shares_blocks


@pytest.mark.parametrize(
    ("features", "rearranged"), [(b"AVX2 = 1 | AMX_INT8 = 1 | ", False), (b"AVX2 = 1 | ", True)]
)
def test_weights_are_not_rearranged_for_amx(features, rearranged, gguf_of, monkeypatch):
    """With AMX llama.cpp ends the whole process at the first token on some processors."""
    given = []
    load = llama_cpp.llama_model_load_from_file
    monkeypatch.setattr(
        llama_cpp,
        "llama_model_load_from_file",
        lambda path, params: given.append(params) or load(path, params),
    )
    monkeypatch.setattr(llama_cpp, "llama_print_system_info", lambda: features)
    LlamaModel(gguf_of("llama"))
    assert given[0].use_extra_bufts is rearranged


def test_passes_have_the_threads_that_are_tried(gguf_of, monkeypatch):
    asked = []
    set_threads = llama_cpp.llama_set_n_threads
    monkeypatch.setattr(
        llama_cpp, "llama_set_n_threads", lambda *all: (asked.append(all[1]), set_threads(*all))[1]
    )
    monkeypatch.setattr(StepThreads, "run", lambda _, rows, step: step(1 + rows % 2))
    llamacpp.load(gguf_of("llama"), kv_tokens=NUM_BLOCKS * BLOCK)
    assert {1, 2} <= {*asked}
