"""A published head beside a real torch target: the text stays the target's own, and each draft is that of its text.

What the head knows lies in KV blocks. So each draft of a run is held against one from nothing but the text: hidden
states of plain transformers, read in one piece by a context of its own. That such a one computes what the `speculators`
package does is tests/test_published_heads.py's to say.

Run: pytest tests/test_published_serving.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edge_client.drafters.none import NoneDrafter
from hw_profiles.step_cost import ROOFLINE
from opensled.errors import NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.messages import SamplingParams
from opensled.store import model_path
from opensled_testbed.reference import Reference
from tests.fakes import IMPATIENT, FakeEngine, Weather
from tests.published_folders import config_of, publish
from tests.system import ask, running
from tests.test_head_drafters import (
    FOUR,
    LONG,
    PROMPTS,
    TOKENS,
    Evicting,
    Recorder,
    ScriptDrafter,
    agree,
    fresh_engine,
    target,
    written,
)
from tests.tiny_models import random_model
from verify_server.config import ServeConfig
from verify_server.drafting import SERVER_DRAFTERS
from verify_server.drafting.base import Ask, Proposal, ServerDrafter
from verify_server.drafting.stage import DraftStage
from verify_server.engine import torch_engine
from verify_server.engine.kv_memory import BLOCK_SIZE
from verify_server.engine.selftest import attending_by
from verify_server.engine.torch_engine import TorchEngine
from verify_server.heads import feature_context
from verify_server.heads.eagle3_attach import eagle3
from verify_server.heads.eagle3_drafter import Eagle3Drafter
from verify_server.heads.feature_context import FeatureContext
from verify_server.round.machine import StepMachine

PLACES = (0, 2, 4)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(model_path("tiny"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head for tiny that drafts 600 of its ids."""
    config = config_of(fresh_engine().network.config, 600, PLACES)
    return publish(tmp_path_factory.mktemp("published"), config)


def loaded(engine: TorchEngine, folder: Path) -> Eagle3Drafter:
    config = ServeConfig(model="tiny", drafter="eagle3", draft_model=str(folder))
    drafter = SERVER_DRAFTERS.get("eagle3")(config, target(engine))
    assert isinstance(drafter, Eagle3Drafter) and drafter.reads_blocks and not drafter.needs_kv
    return drafter


class FromTheText(ServerDrafter):
    """The same head, which knows nothing but the text that it is asked about."""

    def __init__(self, engine: TorchEngine, drafter: Eagle3Drafter) -> None:
        self._network, self._drafter = engine.network, drafter

    @torch.inference_mode()
    def propose(self, asks: list[Ask]) -> list[Proposal]:
        [one] = asks
        with attending_by(self._network, "sdpa"):
            ids = torch.tensor([one.tokens[:-1]])
            states = self._network(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        own, count = self._drafter._context, one.length - 1
        blocks = tuple(range(count // BLOCK_SIZE + 1))
        context = FeatureContext(self._drafter._head, own.taps, own._table, len(blocks), True)
        rows = torch.arange(count)
        context.read(torch.stack([states[tap][0] for tap in own.taps], dim=1), rows, rows)
        alone = Eagle3Drafter(self._drafter._head, context, self._drafter._ids)
        return alone.propose([one._replace(blocks=blocks)])


def beside(engine: TorchEngine, folder: Path) -> tuple[Recorder, FromTheText]:
    drafter = loaded(engine, folder)
    return Recorder(drafter), FromTheText(engine, drafter)


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.long), 0.8])
def test_texts_and_drafts_under_eviction_trees_and_shared_prefixes(reference, folder, temperature) -> None:
    engine = fresh_engine()
    recorder, told = beside(engine, folder)
    prompts = [tuple(reference.encode(text)) for text in (*PROMPTS, *PROMPTS)]
    params = [SamplingParams(temperature, max_tokens=TOKENS, seed=seed) for seed in range(len(prompts))]
    texts = [
        reference.generate(
            prompt, temperature=temperature, max_tokens=TOKENS, seed=own.seed, ignore_eos=False
        )[0]
        for prompt, own in zip(prompts, params)
    ]
    devices = [
        ScriptDrafter((*prompt, *text), seed) if seed % 2 else NoneDrafter()
        for seed, (prompt, text) in enumerate(zip(prompts, texts))
    ]
    answers, stats = written(engine, recorder, prompts, devices, params, Evicting)
    assert [list(answer) for answer in answers] == texts
    assert stats.own.tokens > 50 and stats.preempted > 0
    agree(told, recorder)


def along(engine: TorchEngine, recorder: ServerDrafter, text: tuple[int, ...], most: int = 8) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=most)
    [answer], _ = written(engine, recorder, [text], [NoneDrafter()], [params], StepMachine)
    return list(answer)


def row_before(self, asks):
    return NEWEST(self, [one._replace(tokens=one.tokens[:-1]) for one in asks])


def blind(self, asks):
    return ATTENTION(self, [one._replace(tokens=one.tokens[:2]) for one in asks])


def all_is_there(self, asks):
    return [feature_context.Reading(0, 0, 0) for _ in asks]


NEWEST, ATTENTION = FeatureContext.newest, FeatureContext.attention
PLANTED = {"newest": row_before, "attention": blind, "catch_up": all_is_there}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen_in_drafts_and_in_no_text(monkeypatch, reference, folder, fault) -> None:
    engine = fresh_engine()
    recorder, told = beside(engine, folder)
    with monkeypatch.context() as planted:
        planted.setattr(FeatureContext, fault, PLANTED[fault])
        assert along(engine, recorder, LONG) == reference.generate(LONG, max_tokens=8)[0]
    with pytest.raises(AssertionError):
        agree(told, recorder)


def test_after_a_prefix_hit_and_over_a_link_that_loses_streams(reference, folder) -> None:
    engine = fresh_engine()
    recorder, told = beside(engine, folder)
    params = SamplingParams(temperature=0.8, max_tokens=12, seed=5, ignore_eos=True)

    async def scenario():
        weather = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)
        async with running(engine, drafter=recorder, policy=FOUR, weather=weather) as network:
            first = await ask(network, LONG, NoneDrafter(), params, patience=IMPATIENT)
            return first, await ask(network, LONG, NoneDrafter(), params, patience=IMPATIENT)

    expected = reference.generate(LONG, temperature=0.8, max_tokens=12, seed=5)[0]
    assert [list(answer.tokens) for answer in asyncio.run(scenario())] == [expected, expected]
    agree(told, recorder)


def test_a_head_that_is_right_is_worth_its_tokens(reference, folder) -> None:
    """Its drafts go through: with its output made the target's next token, a step writes more than one."""
    engine = fresh_engine()
    drafter = loaded(engine, folder)
    text = reference.generate(LONG, max_tokens=24)[0]
    whole = torch.tensor([*LONG, *text])

    def right(asks, place, logits):
        known = whole[[min(one.length + place, len(whole) - 1) for one in asks]]
        drafter._ids = torch.arange(drafter._head.shape.target_vocabulary)
        return torch.nn.functional.one_hot(known, len(drafter._ids)).float() * 9

    drafter._scores = right
    [answer], stats = written(
        engine, drafter, [LONG], [NoneDrafter()], [SamplingParams(0.0, max_tokens=24)], StepMachine
    )
    assert list(answer) == text and stats.own.accepted >= 16


def test_long_texts_are_read_in_pieces(reference, folder, monkeypatch) -> None:
    """Until all is read there is no draft, and others do not wait for it."""
    engine = fresh_engine()
    recorder, told = beside(engine, folder)
    with monkeypatch.context() as small:
        small.setattr(feature_context, "READ", 16)
        small.setattr(feature_context, "NEAR", 6)
        assert along(engine, recorder, LONG, 12) == reference.generate(LONG, max_tokens=12)[0]
    first, second, third = [made for _, made in recorder.seen][:3]
    assert (first.read, first.unread, first.block.ids) == (16, 24, ())
    assert second.unread == 9 and not second.block.ids and third.block.ids
    recorder.seen = recorder.seen[2:]
    agree(told, recorder)


def test_the_newest_rows_of_a_long_text(folder, monkeypatch) -> None:
    """What lies before them changes nothing, what lies among them does."""
    monkeypatch.setattr(feature_context, "SEEN", 32)
    engine = fresh_engine()
    drafter = loaded(engine, folder)
    context, count = drafter._context, 70
    rows, hidden = torch.arange(count), torch.randn(count, 3, 256, dtype=torch.float64)
    one = Ask(1, "", tuple(range(5, 6 + count)), 3, SamplingParams(0.0), b"", tuple(range(5)))

    def chances(changed: int) -> torch.Tensor:
        with torch.inference_mode():
            own = hidden.clone()
            own[changed] += 3
            context.read(own, rows, rows)
            for block in one.blocks:
                context._written.free(block)
            context.catch_up([one])
            return drafter.drafted([one])[1]

    assert torch.equal(chances(0), chances(20))
    assert not torch.equal(chances(0), chances(55))


def test_what_is_read_for_one_tenant_is_unread_for_others(folder) -> None:
    """The same text in a block that changes hands: drafts that come sooner would tell what another one has asked."""
    context = loaded(fresh_engine(), folder)._context
    one = Ask(1, "a", LONG, 3, SamplingParams(0.0), b"", (4, 1, 7))
    with torch.inference_mode():
        rows = [
            context.catch_up([one._replace(session=session, tenant=tenant)])[0].rows
            for session, tenant in ((1, "a"), (2, "a"), (3, "b"), (4, "a"))
        ]
    assert rows == [39, 0, 39, 39]


def test_two_pictures_with_the_same_placeholders_are_two_texts(folder) -> None:
    """The same blocks and the same ids, but the target has seen something else there: so has the head."""
    drafter = loaded(fresh_engine(), folder)
    context, count = drafter._context, len(LONG) - 1
    rows = torch.arange(count)
    one = Ask(1, "a", LONG, 3, SamplingParams(0.0), b"", (0, 1, 2))

    def read_and_drafted(session: int, picture: int) -> tuple[int, torch.Tensor]:
        hidden = torch.randn(count, 3, 256, dtype=torch.float64, generator=torch.manual_seed(1))
        hidden[10:] += picture  # what follows a picture depends on it
        content = {place: 1_000_000 * picture + place for place in range(10, 20)}
        asked = one._replace(session=session, content=content)
        with torch.inference_mode():
            context.read(hidden, rows, rows)
            return context.catch_up([asked])[0].rows, drafter.drafted([asked])[1]

    found = [read_and_drafted(session, picture) for session, picture in enumerate((1, 1, 2, 1))]
    assert [count for count, _ in found] == [39, 0, 29, 29], "what is before the picture is known again"
    assert torch.equal(found[0][1], found[3][1]) and not torch.equal(found[0][1], found[2][1])


def test_a_head_that_fails_costs_drafts_only(monkeypatch, reference, folder, caplog) -> None:
    engine = fresh_engine()
    drafter = loaded(engine, folder)
    monkeypatch.setattr(drafter._head, "features", lambda *_: 1 / 0)
    monkeypatch.setattr(drafter._head, "keys_values", lambda *_: 1 / 0)
    assert along(engine, drafter, LONG) == reference.generate(LONG, max_tokens=8)[0]
    assert "the eagle3 head failed" in caplog.text and "the server's drafter failed" in caplog.text


@pytest.mark.parametrize("arch", ["gemma3_text", "qwen3", "llama"])
def test_beside_each_family(tmp_path, arch) -> None:
    """Gemma scales what its embedding gives, and its own norms have 1 + weight: neither is the head's."""
    model = random_model(arch, tmp_path / arch, num_hidden_layers=8)
    engine = torch_engine.load(str(model), device="cpu", dtype="float64", kv_tokens=160, numerics="fast")
    config = config_of(engine.network.config, 97, None)
    plain = along(engine, None, LONG_OF_97, 10)
    recorder, told = beside(engine, publish(tmp_path / "head", config, embedding=False))
    inner = recorder.inner
    assert inner._context.taps == (2, 4, 5)
    assert torch.equal(inner._context._table, engine.network.get_input_embeddings().weight)
    assert along(engine, recorder, LONG_OF_97, 10) == plain
    assert len(recorder.seen) > 2
    agree(told, recorder)


LONG_OF_97 = tuple(5 + 7 * place % 89 for place in range(40))


def test_an_embedding_that_is_the_targets_is_there_once(folder, tmp_path) -> None:
    engine = fresh_engine()
    config = config_of(engine.network.config, 600, PLACES)
    own = loaded(engine, folder)
    assert own._context._table is own._head.embed_tokens.weight
    without = loaded(fresh_engine(), publish(tmp_path / "without", config, embedding=False))
    assert without._context._table is not own._context._table
    assert not hasattr(without._head, "embed_tokens")


def test_it_costs_a_pass_for_each_token(folder) -> None:
    cost = DraftStage(loaded(fresh_engine(), folder), 300).first_cost(ROOFLINE)
    assert cost.passes(4) == 4 and cost.pass_s > 0 < cost.read_s < cost.pass_s


def test_heads_that_do_not_belong_here_are_refused(folder, tmp_path) -> None:
    config = ServeConfig(model="tiny", draft_model=str(folder))
    with pytest.raises(UsageError, match="--engine torch"):
        eagle3(config, target(FakeEngine()))
    with pytest.raises(UsageError, match="--draft-model FOLDER"):
        eagle3(replace(config, draft_model=""), target())
    with pytest.raises(NotFound, match=r"holds no published head: .*config\.json"):
        eagle3(replace(config, draft_model=str(tmp_path)), target())


def test_heads_of_another_target_are_refused(tmp_path) -> None:
    engine = fresh_engine()
    text = engine.network.config

    def refused(
        error: type[Exception], said: str, places: tuple[int, ...] | None = PLACES, **layer: int
    ) -> None:
        told = config_of(text, 60, places)
        told["transformer_layer_config"] |= layer
        with pytest.raises(error, match=said) as caught:
            loaded(engine, publish(tmp_path, told))
        assert str(tmp_path) in str(caught.value) and "some/target" in str(caught.value)

    refused(VocabularyMismatch, "of a target with 2047 ids.*'tiny' has 2048", vocab_size=2047)
    refused(UnsupportedModel, "hidden states of 128.*'tiny' has 256", hidden_size=128)
    refused(UnsupportedModel, r"reads the hidden states \[0, 2, 5\].*layers 0 to 4", (0, 2, 5))
    refused(UnsupportedModel, r"reads the hidden states \[2, 2, 2\].*each once", None)
