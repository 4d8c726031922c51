"""Draft heads beside a real torch target: the text stays the target's own, and every draft is that of a fresh session.

What a head knows lies in KV blocks. So each draft of a run is held against one that is made from nothing but the text:
hidden states from plain transformers, and the attention that heads are trained with.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from edge_client.drafters.none import NoneDrafter
from lab.testbed.reference import Reference
from lab.training.heads.head_writer import save
from lab.training.heads.window_attention import WindowAttention
from opensled.core.errors import NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from tests.drafters_beside import FOUR, PROMPTS, Recorder, Vocabulary, fresh_engine, texts_as_asked, written
from tests.fakes import IMPATIENT, FakeEngine, FakeText, Weather
from tests.system import ask, running
from verify_server.drafting.heads import HEADS, attach
from verify_server.drafting.heads.base import Context, DraftHead, HeadShape
from verify_server.drafting.heads.context import HeadContext
from verify_server.drafting.heads.drafter import FrameDrafter, HeadDrafter, PlaceDrafter
from verify_server.drafting.heads.head_file import HeadFile, config_digest, load
from verify_server.drafting.heads.target_parts import TargetParts
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.selftest import attending_by
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask
from verify_server.round.loaded_model import ServedModel
from verify_server.round.machine import StepMachine

DRAFTERS: dict[str, type[HeadDrafter]] = {"specformer": PlaceDrafter, "ctc": FrameDrafter}
TAPS = {"specformer": (0, 2, 3, 4), "ctc": (4,)}


def random_head(kind: str, network: torch.nn.Module, seed: int = 3, markov: int = 0) -> DraftHead:
    """Of any weights: what it drafts is poor, and depends on everything that it reads."""
    config = network.config
    torch.manual_seed(seed)
    shape = HeadShape(
        kind, TAPS[kind], config.hidden_size, 4, 2, 16, 64, 5, config.vocab_size, 10_000.0, markov
    )
    head: DraftHead = HEADS.get(kind)(shape)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.3 if weight.ndim < 2 else 2 * weight.shape[-1] ** -0.5)
    return head.double().eval()


class FromTheText(HeadDrafter):
    """A drafter's own way from hidden states to tokens, over states and attention from nothing but the text."""

    def _read(self, one: Ask) -> Context:
        network, head = self.network, self._head
        with attending_by(network, "sdpa"):
            ids = torch.tensor([one.tokens[:-1]])
            states = network(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        tapped = torch.stack([states[tap][0] for tap in head.shape.taps], dim=1)
        return head.read(tapped, torch.arange(len(tapped)))

    def _hidden_states(self, asks: Sequence[Ask]) -> torch.Tensor:
        [one] = asks
        head, context = self._head, self._read(one)
        count = len(context.inputs)
        row = torch.tensor([count - 1])
        attend = WindowAttention(context, [count], [row])
        newest = self._parts.embed(torch.tensor([one.tokens[-1]]))
        return self._parts.normalize(head.draft(context.inputs[row], newest, row, attend))


def beside(kind: str, **head: int) -> tuple[TorchEngine, Recorder, HeadDrafter]:
    """An engine, a recorded drafter beside it, and one that knows only texts."""
    engine = fresh_engine()
    built = random_head(kind, engine.network, **head)
    context = HeadContext(built, engine.info.num_blocks)
    engine.attach(context)
    parts = TargetParts(engine.network, torch.arange(built.shape.vocabulary))
    told = type("Told", (FromTheText, DRAFTERS[kind]), {"network": engine.network})(built, context, parts)
    return engine, Recorder(DRAFTERS[kind](built, context, parts)), told


def agree(told: HeadDrafter, recorder: Recorder, most: int = 60) -> None:
    for one, made in random.Random(1).sample(recorder.seen, min(most, len(recorder.seen))):
        [alone] = told.propose([one])
        assert made.block.ids == alone.block.ids
        assert np.allclose(*([t.confidence for t in each.block.tokens] for each in (made, alone)), rtol=1e-3)


@pytest.mark.parametrize(
    "temperature", [0.8, *(pytest.param(each, marks=pytest.mark.long) for each in (0.0, 1.0))]
)
@pytest.mark.parametrize("kind", DRAFTERS)
def test_texts_and_drafts_under_eviction_trees_and_shared_prefixes(reference, kind, temperature):
    engine, recorder, told = beside(kind, **({"markov": 6} if kind == "specformer" else {}))
    texts_as_asked(engine, recorder, reference, temperature)
    agree(told, recorder)


def drafts_of(kind: str, text: tuple[int, ...], steps: int = 6) -> bool:
    """Whether drafts along a text that is read in pieces are those of the text alone."""
    engine, recorder, told = beside(kind)
    device = SamplingParams(temperature=0.0, max_tokens=steps)
    written(engine, recorder, [text], [NoneDrafter()], [device], StepMachine)
    try:
        agree(told, recorder)
    except AssertionError:
        return False
    return True


INPUTS_OF, READ, ATTENTION = HeadContext.inputs, HeadContext.read, HeadContext.attention
EMBEDDED = TargetParts.embed
PLANTED = {
    "a row too early": (
        HeadContext,
        "inputs",
        lambda self, blocks, rows: INPUTS_OF(self, blocks, [row - 1 for row in rows]),
    ),
    "a position too far": (
        HeadContext,
        "read",
        lambda self, hidden, positions, slots: READ(self, hidden, positions + 1, slots),
    ),
    "no context": (
        HeadContext,
        "attention",
        lambda self, blocks, rows: ATTENTION(self, blocks, [0 for _ in rows]),
    ),
}
LONG = tuple(5 + 7 * place % 211 for place in range(40))


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize("fault", [None, *PLANTED])
def test_a_planted_fault_is_seen(monkeypatch, kind, fault):
    if fault:
        monkeypatch.setattr(*PLANTED[fault])
    assert drafts_of(kind, LONG) == (fault is None)


@pytest.mark.parametrize("kind", DRAFTERS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("normalize", lambda self, hidden: hidden),
        ("embed", lambda self, ids: EMBEDDED(self, (ids + 1) % self.draft_ids.numel())),
    ],
)
def test_a_fault_in_what_is_the_targets(monkeypatch, kind, name, wrong):
    """Of the two that are compared, only one has it."""
    engine, recorder, told = beside(kind)
    monkeypatch.setattr(recorder.inner._parts, name, wrong.__get__(recorder.inner._parts))
    told._parts = TargetParts(engine.network, torch.arange(len(told._ids)))
    written(engine, recorder, [LONG], [NoneDrafter()], [SamplingParams(0.0, max_tokens=6)], StepMachine)
    with pytest.raises(AssertionError):
        agree(told, recorder)


def test_a_head_sees_the_newest_positions_of_a_long_text():
    """More than a window of them: what lies before it changes nothing, what lies in it does."""
    engine = torch_engine.load(
        str(model_path("tiny")), device="cpu", dtype="float64", kv_tokens=800, numerics="fast"
    )
    head = random_head("ctc", engine.network)
    context = HeadContext(head, engine.info.num_blocks)
    size = head.shape.size
    blocks, count = tuple(range(25)), 390
    states = torch.randn(count, 1, size, dtype=torch.float64)

    def attended(changed: int) -> torch.Tensor:
        own = states.clone()
        own[changed] += 1
        context.read(own, torch.arange(count), torch.arange(count))
        queries = torch.ones(1, 1, head.shape.heads, head.shape.head_size, dtype=torch.float64)
        return context.attention([blocks], [count - 1])(queries, None)

    assert torch.equal(attended(0), attended(1))
    assert not torch.equal(attended(0), attended(200))


@pytest.mark.parametrize("kind", DRAFTERS)
def test_a_head_that_fails_costs_drafts_only(monkeypatch, reference, kind, caplog):
    engine, recorder, _ = beside(kind)
    monkeypatch.setattr(recorder.inner._head, "read", lambda *_: 1 / 0)
    prompt = tuple(reference.encode(PROMPTS[0]))
    params = SamplingParams(temperature=0.0, max_tokens=6)
    answers, _ = written(engine, recorder, [prompt], [NoneDrafter()], [params])
    assert list(answers[0]) == reference.generate(prompt, max_tokens=6)[0]
    assert "the draft head failed" in caplog.text


@pytest.fixture
def trained(tmp_path: Path) -> HeadFile:
    """A head's files for tiny; of any weights."""
    engine = fresh_engine()
    head = random_head("specformer", engine.network)
    ids = np.arange(head.shape.vocabulary, dtype=np.int32)
    own = HeadFile(tmp_path / "head", head, ids, "tiny", "of tiny", config_digest(engine.network.config))
    save(own)
    return own


def target(engine=None, text=None) -> ServedModel:
    return ServedModel("tiny", engine or fresh_engine(), text or Vocabulary())


def test_a_head_is_loaded_beside_its_target(trained):
    drafter = attach.specformer(ServeConfig(model="tiny", draft_model=str(trained.folder)), target())
    assert isinstance(drafter, PlaceDrafter)


def test_heads_that_do_not_belong_here_are_refused(trained, tmp_path):
    config = ServeConfig(model="tiny", draft_model=str(trained.folder))
    with pytest.raises(UsageError, match="--engine torch"):
        attach.specformer(config, target(FakeEngine()))
    with pytest.raises(UsageError, match="--server-drafter specformer"):
        attach.ctc(config, target())
    with pytest.raises(VocabularyMismatch, match="another vocabulary"):
        attach.specformer(config, target(text=FakeText()))
    with pytest.raises(NotFound, match="train-head"):
        attach.specformer(ServeConfig(model="of/nobody"), target())
    with pytest.raises(NotFound, match="holds no draft head"):
        attach.specformer(replace(config, draft_model=str(tmp_path)), target())
    save(replace(trained, config="of a wider one"))
    with pytest.raises(UnsupportedModel, match="a target of other sizes"):
        attach.specformer(config, target())
    save(trained)
    wide = load(trained.folder)
    wide.head.shape = replace(wide.head.shape, taps=(0, 2, 3, 40))
    save(wide)
    with pytest.raises(UnsupportedModel, match="at least 40 layers"):
        attach.specformer(config, target())


# -- after a prefix hit, a lost stream, and on another server -----------------------------------------------------


WARM = SamplingParams(temperature=0.8, max_tokens=12, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    found, _ = Reference(model_path("tiny")).generate(LONG, temperature=0.8, max_tokens=12, seed=5)
    return found


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_after_a_prefix_hit(kind, expected):
    engine, recorder, told = beside(kind)
    async with running(engine, drafter=recorder, policy=FOUR) as network:
        first = await ask(network, LONG, NoneDrafter(), WARM)
        loop = network.manager.loop
        computed, asked = loop.machine.stats.positions, len(recorder.seen)
        second = await ask(network, LONG, NoneDrafter(), WARM)
        again = loop.machine.stats.positions - computed
    assert list(first.tokens) == list(second.tokens) == expected
    assert again == computed - 2 * BLOCK_SIZE, "all else is the same: two blocks of the prompt were there"
    recorder.seen = recorder.seen[asked:]
    agree(told, recorder)


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_over_a_link_that_loses_streams(kind, expected):
    engine, recorder, told = beside(kind)
    weather = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)
    async with running(engine, drafter=recorder, policy=FOUR, weather=weather) as network:
        assert list((await ask(network, LONG, NoneDrafter(), WARM, patience=IMPATIENT)).tokens) == expected
    agree(told, recorder)


@pytest.mark.parametrize("kind", DRAFTERS)
async def test_on_another_server_the_head_reads_all_of_the_text(kind, expected):
    """What a device sends to a server that takes over: prompt, what is committed, and the same seed."""
    engine, recorder, told = beside(kind)
    async with running(engine, drafter=recorder, policy=FOUR) as network:
        assert (
            list((await ask(network, LONG, NoneDrafter(), WARM, committed=tuple(expected[:5]))).tokens)[-7:]
            == expected[-7:]
        )
    assert min(one.length for one, _ in recorder.seen) > len(LONG) + 5
    agree(told, recorder)
