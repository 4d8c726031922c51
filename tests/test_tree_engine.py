"""Draft trees on real engines: each path of a tree has the logits of the same path as a chain, and the text stays."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opensled.core.messages import Draft, DraftBlock, Guide, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.trees import depth_first, without_twins
from opensled.models.store import model_path
from scheduler.plan import Slice
from tests.hypothesis_profiles import tried
from tests.lossless import Case, cases
from tests.sessions import made
from tests.tiny_models import VOCABULARY
from tests.tiny_models import folder as folder
from tests.tree_drafts import grown, longest_agreeing, paths, tree
from verify_server.engine.base import MAX_TREE, Segment
from verify_server.engine.torch import geometry
from verify_server.engine.torch.packing import Geometry
from verify_server.engine.torch.sdpa_groups import GATHER_TOKENS
from verify_server.engine.torch.torch_engine import TorchEngine, load
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.riders.guide import GuideMasks
from verify_server.round.offer import DraftLimits
from verify_server.round.step import run_step
from verify_server.text.guide import GuideCompiler

# Windows shorter than the prompts, soft caps, experts: see tests/tiny_models.py.
FAMILIES = ("llama", "qwen3", "mistral", "gemma2", "gemma3_text")
NUM_BLOCKS = 48
PROMPT_LENGTHS = (3, 30, 61)  # in the middle of a block, and so that trees reach beyond a span of 64


@pytest.fixture(scope="session")
def engine(folder: Callable[[str], Path]) -> Callable[[str, str, str], TorchEngine]:
    """A loaded engine by family, dtype and numerics."""
    return cache(
        lambda family, dtype, numerics: load(
            str(folder(family)), "cpu", dtype, NUM_BLOCKS * 16, numerics=numerics
        )
    )


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCABULARY), k=length)


def random_tree(seed: int, nodes: int) -> DraftBlock:
    """In the engine's order, with several branches."""
    block = grown(random.Random(seed), 0, (), nodes, VOCABULARY)
    return depth_first(without_twins(tree(0, (5, -1), (6, -1), *zip(block.ids, block.parents))))


def blocks_of(seed: int, count: int = 12) -> tuple[int, ...]:
    return tuple(random.Random(seed).sample(range(NUM_BLOCKS), count))


def rows_of_chains(engine: TorchEngine, known: Sequence[int], block: DraftBlock) -> torch.Tensor:
    """What follows the text, and each path of the tree, computed as plain chains by themselves."""
    rows = [
        engine.forward([Segment((*known, *path), 0, blocks_of(99), 1)]).logits for path in [(), *paths(block)]
    ]
    return torch.cat(rows)


def rows_of_tree(
    engine: TorchEngine, known: Sequence[int], block: DraftBlock, blocks: tuple[int, ...]
) -> torch.Tensor:
    """The same in one step, beside a chunk of another sequence."""
    held = len(known) - 2
    engine.forward([Segment(tuple(known[:held]), 0, blocks, 0)])
    company = Segment(tuple(prompt(20, 4)), 0, tuple(set(range(NUM_BLOCKS)) - set(blocks))[:2], 1)
    tokens = (*known[held:], *block.ids)
    segment = Segment(tokens, held, blocks, len(block.tokens) + 1, block.parents)
    return engine.forward([company, segment]).logits[1:]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tree_has_the_bits_of_its_paths_at_level_exact(family, dtype, engine):
    loaded = engine(family, dtype, "exact")
    assert loaded.info.numerics == "exact" and loaded.info.max_tree == MAX_TREE
    for length in PROMPT_LENGTHS:
        known, block = prompt(length, length), random_tree(length, 14)
        given = rows_of_tree(loaded, known, block, blocks_of(length))
        assert torch.equal(given, rows_of_chains(loaded, known, block))


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3_moe"])
def test_a_mask_keeps_the_paths_apart_at_level_fast(family, engine):
    loaded = engine(family, "float64", "fast")
    assert loaded.info.numerics == "fast"
    for length in PROMPT_LENGTHS:
        known, block = prompt(length, length), random_tree(length, 40)
        given = rows_of_tree(loaded, known, block, blocks_of(length))
        expected = rows_of_chains(engine(family, "float64", "auto"), known, block)
        assert (given - expected).abs().max() < 1e-5 * expected.std()


def test_several_trees_in_one_step_do_not_mix(engine):
    for numerics in ("exact", "fast"):
        loaded, segments, expected = engine("gemma3_text", "float64", numerics), [], []
        for number in range(4):
            known, block = prompt(9, number), random_tree(number, 10 + number)
            blocks = tuple(range(4 * number, 4 * number + 4))
            rows = len(block.tokens) + 1
            segments.append(Segment((*known, *block.ids), 0, blocks, rows, block.parents))
            expected.append(rows_of_chains(engine("gemma3_text", "float64", "exact"), known, block))
        assert (loaded.forward(segments).logits - torch.cat(expected)).abs().max() < 1e-5


@pytest.mark.parametrize("numerics", ["exact", "fast"])
@pytest.mark.parametrize("family", FAMILIES)
def test_after_compaction_the_text_goes_on_as_if_it_had_been_a_chain(family, numerics, engine):
    loaded = engine(family, "float64", numerics)
    known, block = prompt(30, 1), random_tree(14, 24)
    path = max([path for path in paths(block) if path[0] == 6], key=len)  # not of the first branch
    assert len(path) > 3
    rows_of_tree(loaded, known, block, blocks := blocks_of(5))
    indices = [paths(block).index(path[: length + 1]) for length in range(len(path))]
    loaded.compact(blocks, [(30 + index, 30 + place) for place, index in enumerate(indices)])
    text = (*known, *path)
    after = loaded.forward([Segment((7, 8, 9), len(text), blocks, 3)]).logits
    expected = (
        engine(family, "float64", "exact").forward([Segment((*text, 7, 8, 9), 0, blocks_of(6), 3)]).logits
    )
    if numerics == "exact":
        assert torch.equal(after, expected)
    assert (after - expected).abs().max() < 1e-5


def test_an_engine_whose_trees_have_other_bits_is_not_called_exact(folder, tmp_path, monkeypatch):
    """The mask alone gives the right logits, but sums them in another order."""
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path))  # of no earlier load
    by_mask = Geometry(rows=16, queries=8, span=64, head_rows=64)
    monkeypatch.setattr(geometry, "find", lambda *_: by_mask)
    info = load(str(folder("llama")), "cpu", "float32", NUM_BLOCKS * 16).info
    assert (info.numerics, info.tree_reads) == ("fast", 0)


def test_where_branches_attend_alone_they_read_no_more_than_attention_gathers_at_once():
    assert tiny("float32").info.tree_reads == GATHER_TOKENS


# The text


class Decoding:
    """One sequence of the tiny target, decoded from random trees."""

    def __init__(
        self, case: Case, pool: BlockPool, seed: int, right: float, guide: Guide | None = None
    ) -> None:
        self.case, self.right, self.chance, self.counter = case, right, random.Random(seed), 0
        assert case.params.seed is not None
        self.session = made(
            1, case.prompt, case.params.max_tokens, BlockTable(pool), DraftLimits(2048, 16, MAX_TREE),
            eos=0, params=case.params, key=noise_key(case.params.seed),
        )  # fmt: skip
        self.session.attach(len(case.prompt))
        if guide is not None:
            self.session.riders += (GuideMasks(guides().start(guide, ())),)
        self.expected = 0

    @property
    def left(self) -> tuple[int, ...]:
        return self.case.expected[len(self.session.sequence.tokens) - len(self.case.prompt) :]

    def plan(self):
        """A chunk of the prompt, or a tree; what the round is to commit is `expected`."""
        session = self.session
        missing = len(session.sequence.tokens) - session.sequence.computed
        tokens = min(missing, self.chance.randint(1, 40))
        if tokens < missing:
            self.expected = 0
            return session.plan(Slice(1, tokens, False), 0.0)
        self.counter += 1
        block = grown(
            self.chance, len(session.sequence.tokens), self.left, self.chance.randint(1, 30), 2000, self.right
        )
        session.submit(Draft(self.counter, block), 0.0)
        self.expected = min(longest_agreeing(block, self.left) + 1, len(self.left))
        return session.plan(Slice(1, tokens, True), 0.0)

    def close(self) -> None:
        self.session.forget_kv()


def written(engine: TorchEngine, decoding: Decoding, with_trees: bool) -> tuple[int, ...]:
    """The answer of a sequence that is decoded alone; with trees, what each round commits is checked."""
    session = decoding.session
    while not session.sequence.finish_reason:
        uncomputed = len(session.sequence.tokens) - session.sequence.computed
        planned = decoding.plan() if with_trees else session.plan(Slice(1, uncomputed, True), 0.0)
        committed = session.commit(planned, run_step(engine, [planned])[0], 1.0)
        assert not with_trees or committed == decoding.expected
    decoding.close()
    return tuple(session.sequence.tokens[session.sequence.prompt_length :])


@cache
def tiny(dtype: str) -> TorchEngine:
    return load(str(model_path("tiny")), device="cpu", dtype=dtype, kv_tokens=4096)


@tried(12)
@given(
    st.lists(st.integers(0, 15), min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.sampled_from((0.4, 0.7, 1.0)),
)
def test_whatever_the_trees_the_text_and_the_tokens_per_round_are_the_references(numbers, seed, right):
    """Of several sessions at once, whose prompts come in chunks."""
    loaded = tiny("float64")
    pool = BlockPool(loaded.info.num_blocks, loaded.info.block_size)
    all_of_them = [Decoding(cases()[number], pool, seed + i, right) for i, number in enumerate(numbers)]
    while active := [each for each in all_of_them if not each.session.sequence.finish_reason]:
        work = [each.plan() for each in active]
        for each, planned, decision in zip(active, work, run_step(loaded, work)):
            assert each.session.commit(planned, decision, 1.0) == each.expected
    for each in all_of_them:
        assert tuple(each.session.sequence.tokens[len(each.case.prompt) :]) == each.case.expected
        assert each.session.sequence.finish_reason == each.case.reason
        each.close()
    assert pool.num_free == pool.num_blocks


def test_at_level_exact_float32_trees_write_what_decoding_alone_writes():
    loaded = tiny("float32")
    assert loaded.info.numerics == "exact"
    pool = BlockPool(loaded.info.num_blocks, loaded.info.block_size)
    for number, case in enumerate(cases()[:6]):
        expected = written(loaded, Decoding(case, pool, number, 0.0), with_trees=False)
        drafted = Decoding(replace(case, expected=expected), pool, number, 0.8)
        assert written(loaded, drafted, with_trees=True) == expected


@cache
def guides() -> GuideCompiler:
    return GuideCompiler((model_path("tiny") / "tokenizer.json").read_bytes(), 2048, (0,), "")


def test_a_guided_answer_is_the_same_with_trees():
    guide = Guide(
        json_schema=json.dumps(
            {"type": "array", "minItems": 3, "items": {"enum": ["left", "lift", 12, 120, True]}}
        )
    )
    loaded = tiny("float64")
    pool = BlockPool(loaded.info.num_blocks, loaded.info.block_size)
    for number in range(3):
        params = SamplingParams(temperature=0.9, seed=number, max_tokens=24)
        case = Case(cases()[number].prompt, params, (), "")
        expected = written(loaded, Decoding(case, pool, 0, 0.0, guide), with_trees=False)
        assert len(expected) > 4
        drafted = Decoding(replace(case, expected=expected), pool, number, 0.8, guide)
        assert written(loaded, drafted, with_trees=True) == expected


def test_a_sampled_tree_uses_the_noise_of_each_tokens_own_position():
    """At T = 1 noise of a wrong position would choose other tokens."""
    case = next(case for case in cases() if case.params.temperature == 1.0 and len(case.expected) > 8)
    loaded = tiny("float64")
    each = Decoding(case, BlockPool(loaded.info.num_blocks, 16), 1, 1.0)
    a, b, c = case.expected[:3]
    base = len(case.prompt)
    each.session.submit(Draft(1, tree(base, (9, -1), (8, -1), (a, -1), (7, 2), (b, 2), (6, 4), (c, 4))), 0.0)
    planned = each.session.plan(Slice(1, base, True), 0.0)
    assert each.session.commit(planned, run_step(loaded, [planned])[0], 1.0) == 4
    assert tuple(each.session.sequence.tokens[base:]) == case.expected[:4]
