"""Two processes compute what one does: texts, tokens of each step, hidden states; and what cannot be cut is refused.

The pair of processes is shared by the tests of this file. The last one ends it.

Run: pytest tests/test_tensor_parallel.py
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from hw_profiles.step_cost import HardwareProfile
from opensled.errors import EngineError, EngineLost, OpenSledError, UnsupportedModel, UsageError
from opensled.messages import Draft, DraftBlock, DraftToken, SamplingParams
from scheduler.fcfs import Fcfs
from tests.rounds import looping, one_step
from tests.sessions import made
from tests.tiny_models import VOCABULARY, random_model
from verify_server.engine import tensor_parallel, torch_engine
from verify_server.engine.base import Segment, TargetEngine
from verify_server.engine.shard_links import ShardLinks
from verify_server.kv.blocks import BlockTable
from verify_server.offers.offer import DraftLimits
from verify_server.session import Session

KV_TOKENS = 160  # of ten blocks: less than the texts below need, so that some are preempted
PROMPTS = (61, 30, 7)
NEW_TOKENS = 24
SAMPLED = SamplingParams(temperature=0.8, max_tokens=NEW_TOKENS)
EOS = VOCABULARY  # an id that never comes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda family: random_model(family, tmp_path_factory.mktemp(family)))


@pytest.fixture(scope="module")
def links() -> Iterator[ShardLinks]:
    pair = ShardLinks(2)
    yield pair
    tensor_parallel.close(pair)


def options(folder: Path, dtype: str, numerics: str) -> dict[str, object]:
    return {
        "model": str(folder), "device": "cpu", "dtype": dtype, "numerics": numerics, "kv_tokens": KV_TOKENS,
        "most_rows": 64,
    }  # fmt: skip


class Play:
    """Sequences on an engine, with drafts that are partly right, in steps moved by hand; in all things determined by
    the engine's tokens."""

    def __init__(self, engine: TargetEngine, known: dict[int, list[int]] | None) -> None:
        """`known`: the texts by which drafts are made; None = there are no drafts."""
        self.engine, self.known = engine, known
        self.random = random.Random(3)
        self.loop = looping(engine, Fcfs(0.0), HardwareProfile(64))
        self.steps: list[
            tuple[tuple[int, int, int], ...]
        ] = []  # of each session: id, tokens computed, text so far
        self.trees = 0
        for id, length in enumerate(PROMPTS):
            self._open(id, random.Random(id).choices(range(3, VOCABULARY), k=length))

    def _open(self, id: int, prompt: list[int]) -> None:
        limits = DraftLimits(VOCABULARY, 8, self.engine.info.max_tree)
        table = BlockTable(self.loop.machine.target.pool, "t", 0)
        session = made(id, prompt, NEW_TOKENS, table, limits, eos=EOS, params=SAMPLED, key=bytes([id]) * 16)
        self.loop.add(session)
        self.loop.attach(session, len(prompt))

    def run(self) -> dict[int, list[int]]:
        """The texts."""
        everyone = dict(self.loop.machine.sessions)
        for number in range(300):
            for session in self.loop.machine.sessions.values():
                self._draft(session, number + 1)
            work = one_step(self.loop)
            if not work:
                break
            self.steps.append(
                tuple(
                    [(item.session.id, len(item.segment.tokens), len(item.session.sequence)) for item in work]
                )
            )
        assert not self.loop.machine.sessions, "all texts end"
        return {id: list(session.sequence.tokens) for id, session in everyone.items()}

    def _draft(self, session: Session, counter: int) -> None:
        text = session.sequence
        if self.known is None or len(text) < text.prompt_length + 1:
            return
        right = self.known[session.id][len(text) : len(text) + 3]
        if self.random.random() < 0.5:
            right = [*right[:1], *[5] * len(right[1:])]
        if not right:
            return
        if tree := self.random.random() < 0.5:
            self.trees += 1
        block = twinned(len(text), right) if tree else DraftBlock(len(text), tuple(map(DraftToken, right)))
        self.loop.submit(session, Draft(counter, block))


def twinned(base: int, right: list[int]) -> DraftBlock:
    """A tree in which a wrong token stands before each of `right`."""
    tokens = [DraftToken(id) for token in right for id in ((token + 1) % VOCABULARY, token)]
    return DraftBlock(base, tuple(tokens), tuple([index - index % 2 - 1 for index in range(len(tokens))]))


def same_texts(links: ShardLinks, folder: Path, numerics: str = "fast") -> TargetEngine:
    """Two processes against one, through drafts, trees and preemption; returns the engine of the two."""
    tensor_parallel.check(str(folder), "cpu", 2)
    pair = tensor_parallel.load(links, 1, **options(folder, "float64", numerics))
    one = torch_engine.load(**options(folder, "float64", numerics))
    assert pair.info.shards == 2 and pair.info.num_blocks == one.info.num_blocks == 10
    assert pair.info.numerics == one.info.numerics
    known = Play(one, None).run()
    assert Play(pair, None).run() == known
    alone, together = Play(one, known), Play(pair, known)
    assert alone.run() == together.run() == known
    assert alone.steps == together.steps and len(alone.steps) < NEW_TOKENS * len(PROMPTS)
    assert (
        together.trees > 5 and together.loop.machine.stats.preempted == alone.loop.machine.stats.preempted > 0
    )
    return pair


def test_two_processes_write_what_one_writes(links: ShardLinks, folder: Callable[[str], Path]) -> None:
    """Windows, soft caps, norms behind layers, and output weights that are the embedding's."""
    same_texts(links, folder("gemma2"))


def test_a_sum_of_two_shards_does_not_depend_on_the_batch(
    links: ShardLinks, folder: Callable[[str], Path]
) -> None:
    """Level exact is what the tests at load have shown of the whole, sums of shards included."""
    pair = same_texts(links, folder("llama"), "exact")
    assert pair.info.numerics == "exact"
    tokens = tuple(range(3, 40))
    whole = pair.forward([Segment(tokens, 0, (1, 5, 2), len(tokens))]).logits
    pair.forward([Segment(tokens[:9], 0, (4,), 0), Segment(tokens[5:20], 0, (3, 6), 3)])
    parts = pair.forward([Segment(tokens[3:30], 0, (7, 8), 5), Segment(tokens[9:], 9, (4, 9, 0), 5)]).logits
    assert torch.equal(parts[5:], whole[-5:])


def test_each_shard_has_its_own_heads_of_the_kv(links: ShardLinks, folder: Callable[[str], Path]) -> None:
    pair = tensor_parallel.load(links, 1, **options(folder("llama"), "float32", "fast"))
    one = torch_engine.load(**options(folder("llama"), "float32", "fast"))
    halves = [engine._model.memory.bytes_per_token() for engine in (pair._first, one)]
    assert 2 * halves[0] == halves[1]


def test_hidden_states_are_whole_in_the_first_shard(links: ShardLinks, folder: Callable[[str], Path]) -> None:
    pair = tensor_parallel.load(links, 1, **options(folder("llama"), "float32", "fast"))
    one = torch_engine.load(**options(folder("llama"), "float32", "fast"))
    taken = []
    for engine in (pair, one):
        engine.keep(2)
        scores = engine.forward([Segment((3, 4, 5, 6), 0, (1,), 2)])
        taken.append(scores.hidden([0, 1]))
    assert np.allclose(*taken, atol=0.05)


REFUSED: dict[str, tuple[str, dict[str, object], int, type[OpenSledError], str]] = {
    "no plan": ("bloom", {}, 2, UnsupportedModel, "no plan by which bloom is cut"),
    "heads": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 3}, 2, UsageError, "use --shards 3"),
    "kv heads": ("llama", {}, 4, UsageError, "4 attention heads and 2 heads of KV .* use --shards 2"),
    "quantized": (
        "llama",
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        2,
        UnsupportedModel,
        "FP8 in blocks are not cut",
    ),
    "one head": ("qwen2", {"num_key_value_heads": 1}, 2, UsageError, "use one process"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_cut_is_refused_before_a_process_starts(case: str, tmp_path: Path) -> None:
    family, changed, shards, kind, reason = REFUSED[case]
    model = random_model(family, tmp_path, **changed)
    with pytest.raises(kind, match=reason):
        tensor_parallel.start(shards, 1, pytest.fail, **options(model, "float32", "fast"))


def test_a_head_beside_a_target_of_shards_is_refused(
    links: ShardLinks, folder: Callable[[str], Path]
) -> None:
    from verify_server.config import ServeConfig
    from verify_server.drafting import SERVER_DRAFTERS
    from verify_server.served_model import ServedModel

    pair = tensor_parallel.load(links, 1, **options(folder("llama"), "float32", "fast"))
    for drafter in ("ctc", "specformer", "eagle3", "exit:1"):
        with pytest.raises(UsageError, match="--shards"):
            SERVER_DRAFTERS.get(drafter)(ServeConfig(drafter=drafter), ServedModel("m", pair, None))  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral", "gemma3_text", "qwen3_moe", "phi3"])
def test_other_families(family: str, links: ShardLinks, folder: Callable[[str], Path]) -> None:
    same_texts(links, folder(family))


def test_a_shard_that_dies_in_a_step_is_named(links: ShardLinks, folder: Callable[[str], Path]) -> None:
    pair = tensor_parallel.load(links, 1, **options(folder("llama"), "float32", "fast"))
    with pytest.raises(EngineError, match="token ids"):  # of all shards alike, and nothing is lost
        pair.forward([Segment((VOCABULARY,), 0, (1,), 1)])
    pair.forward([Segment((5,), 0, (1,), 1)])
    [process] = links.processes
    os.kill(process, signal.SIGSTOP)  # so that the step waits for it
    threading.Timer(0.3, os.kill, (process, signal.SIGKILL)).start()
    with pytest.raises(EngineLost, match=rf"shard 1 of 2 \(process {process}\) was ended by signal 9"):
        pair.forward([Segment((5, 6), 0, (1,), 1)])
    with pytest.raises(EngineLost, match="shard 1 of 2"):
        pair.compact((1,), [(1, 0)])
