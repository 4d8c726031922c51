"""Drafters beside the target: the text stays the target's own, and what is drafted is worth its rows."""

import asyncio
import threading
from collections.abc import Sequence
from itertools import count

import pytest

from edge_client.drafters.none import NoneDrafter
from hw_profiles.step_cost import DraftingCost, HardwareProfile, Roofline
from opensled.core.errors import UsageError, VocabularyMismatch
from opensled.core.messages import DraftBlock, DraftToken
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from tests.drafters_beside import EXPECTED, FOUR, PROMPT, Broken, Returns, counted, engine
from tests.fakes import (
    IMPATIENT,
    VOCAB,
    FakeText,
    OracleDrafter,
    Weather,
    continuation,
    next_token,
)
from tests.loops import cancelled
from tests.rounds import looping, one_step
from tests.sessions import made
from tests.system import ask, running, until
from verify_server.drafting.cacheback import ServerTables
from verify_server.drafting.choice import drafting_of
from verify_server.drafting.lookup import ServerLookup
from verify_server.drafting.model import ServerModel
from verify_server.kv.blocks import BlockTable
from verify_server.options.registries import ENGINES, SERVER_DRAFTERS
from verify_server.options.serve_config import ServeConfig
from verify_server.round.draft_stage import DraftStage
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.loaded_model import ServedModel

STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=7)


def periodic(context: Sequence[int]) -> int:
    """A target that repeats itself."""
    return 1 + len(context) % 7


def often_right(context: Sequence[int]) -> int:
    """A draft model that errs at every fifth position."""
    return next_token(context) if len(context) % 5 else 1 + next_token(context) % 40


def tables() -> ServerTables:
    return ServerTables(None, ServedModel("fake", engine(), FakeText()))


def perfect() -> ServerModel:
    return ServerModel(engine())


@pytest.mark.parametrize("name", SERVER_DRAFTERS.names())
def test_every_name_leads_to_a_drafter(name):
    assert SERVER_DRAFTERS.get(name)


@pytest.mark.parametrize(
    "make", [ServerLookup, tables, perfect, lambda: ServerModel(engine(target=often_right))]
)
@pytest.mark.parametrize("target", [next_token, periodic])
def test_the_text_is_the_targets_own(make, target):
    prompts = [[id, 2, 3] for id in range(1, 9)]
    alone = [counted(Broken(), engine(target=target), [prompt])[0][0] for prompt in prompts]
    assert counted(make(), engine(target=target), prompts)[0] == alone


def test_a_perfect_draft_model_brings_as_many_tokens_a_step_as_it_drafts():
    texts, stats = counted(perfect(), engine())
    assert texts == [EXPECTED]
    # The first step decides one token, the others five each, up to the fortieth
    assert stats.steps == 1 + 8
    assert (stats.own.tokens, stats.own.accepted) == (31, 31)


@pytest.mark.parametrize(("make", "least"), [(ServerLookup, 20), (tables, 20)])
def test_what_repeats_is_copied(make, least):
    _, stats = counted(make(), engine(target=periodic))
    assert stats.own.accepted >= least and stats.steps < 20


def half_right(parity: int) -> ServerDrafter:
    """Knows the texts whose first token is even, or odd, and nothing of others."""

    def draft(ask: Ask) -> Proposal:
        right = continuation(ask.tokens, ask.most)
        knows = ask.tokens[0] % 2 == parity
        return ask.chain([DraftToken(id if knows else 1 + id % 40) for id in right])

    return Returns(lambda asks: [draft(ask) for ask in asks])


@pytest.mark.parametrize("policy", [Goodput(0.25), FOUR])
def test_of_two_drafters_each_text_has_the_one_that_knows_it(policy):
    """By hand, in steps of 30 ms; policy `fcfs` asks the first one alone."""
    now, served = count(), engine()
    stage = DraftStage({"even": half_right(0), "odd": half_right(1)}, 50, lambda: 0.0)
    profile = HardwareProfile(256, Roofline(read_s=0.03, token_s=1e-6), (DraftingCost(), DraftingCost()))
    loop = looping(served, policy, profile, lambda: 0.03 * next(now), stage)
    sessions = []
    for id in range(1, 9):
        session = made(id, [id, 2, 3], 60, BlockTable(loop.machine.target.pool))
        session.sources.servers = tuple(stage.sources(session.tenant))
        session.attach(3)
        sessions.append(session)
        loop.machine.add(session, 0.0)
    while loop.machine.sessions:
        one_step(loop)
    written = [session.sequence.tokens for session in sessions]
    assert written == [[*text[:3], *continuation(text[:3], 60)] for text in written]
    stats = loop.machine.stats
    assert (stats.steps < 25) == (stats.own.accepted > 0.7 * stats.own.tokens) == isinstance(policy, Goodput)


def test_a_draft_model_computes_every_position_about_once():
    model = engine()
    counted(ServerModel(model), engine(), [PROMPT, [9, 2, 6]])
    assert model.computed <= 1.5 * 2 * (5 + 40)  # rolled back blocks of four positions may change hands


def test_one_pass_of_a_draft_model_serves_all_sessions():
    model = engine()
    counted(ServerModel(model), engine(), [[id, 2, 3] for id in range(1, 9)])
    assert max(model.batches) == 8


async def test_text_that_sessions_share_is_read_once():
    """The second session finds what the draft model computed for the first one."""
    model, prompt = engine(), list(range(1, 41))
    async with running(engine(), drafter=ServerModel(model), policy=FOUR) as network:
        await ask(network, prompt, NoneDrafter())
        before = model.computed
        await ask(network, prompt, NoneDrafter())
    assert 2 * before - model.computed >= 36


def test_a_long_text_is_read_in_pieces():
    model, prompt = engine(context_length=2000), [1 + place % 40 for place in range(600)]
    texts, stats = counted(ServerModel(model), engine(context_length=2000), [prompt], max_step_tokens=700)
    assert texts == [tuple(continuation(prompt, 40))]
    assert stats.own.accepted > 20


def test_drafts_end_where_the_draft_models_context_does():
    texts, stats = counted(ServerModel(engine(context_length=20)), engine())
    assert texts == [EXPECTED]
    assert stats.own.accepted == 12  # positions 6 to 20, one of each step the target's own


def test_a_drafter_that_fails_costs_drafts_only(caplog):
    texts, stats = counted(Broken(), engine())
    assert texts == [EXPECTED] and stats.steps == 40
    assert "a drafter of the server failed" in caplog.text


@pytest.mark.parametrize(
    "block",
    [
        DraftBlock(6, (DraftToken(VOCAB),)),
        DraftBlock(6, (DraftToken(-1),)),
        DraftBlock(3, (DraftToken(1),)),
        DraftBlock(6, (DraftToken(1), DraftToken(2)), (-1, -1)),
        DraftBlock(6, tuple(map(DraftToken, range(1, 30)))),
    ],
)
def test_what_a_drafter_may_not_propose_is_cut(block):
    texts, stats = counted(Returns(lambda asks: [Proposal(block) for _ in asks]), engine())
    assert texts == [EXPECTED]
    assert stats.own.tokens <= 4


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
def test_drafts_of_the_device_and_of_the_server_are_one_tree(acceptance):
    for make in (perfect, lambda: ServerModel(engine(target=often_right))):
        texts, stats = counted(make(), engine(), device=lambda: OracleDrafter(acceptance, seed=1))
        assert texts == [EXPECTED]
        assert stats.own.accepted > 10


def test_a_storm_on_every_link_changes_nothing():
    prompts = [[id, 2, 3] for id in range(1, 9)]
    texts, _ = counted(
        ServerModel(engine(target=often_right)),
        engine(),
        prompts,
        device=lambda: OracleDrafter(0.7, seed=2),
        policy=Fcfs(0.02, 4),
        weather=STORM,
        patience=IMPATIENT,
    )
    assert texts == [tuple(continuation(prompt, 40)) for prompt in prompts]


# -- loading ----------------------------------------------------------------------------------------------------


def test_a_draft_model_of_another_vocabulary_is_refused():
    target = ServedModel("fake", engine(), FakeText())
    with pytest.raises(VocabularyMismatch, match="choose another --draft-model"):
        SERVER_DRAFTERS.get("model")(ServeConfig(draft_model="tiny-draft"), target)


@pytest.mark.parametrize("name", ["ctc", "specformer", "model", "exit", "eagle3"])
def test_a_head_that_vllm_runs_is_refused_with_the_way(name, tmp_path):
    (tmp_path / "config.json").write_text('{"speculators_model_type": "eagle3"}')
    served = ServedModel("fake", engine(), FakeText())
    for config in (
        ServeConfig(server_drafter=name, draft_model=str(tmp_path)),
        ServeConfig(server_drafter=str(tmp_path)),
    ):
        with pytest.raises(
            UsageError, match="use --engine vllm --server-drafter vllm:eagle3 --draft-model"
        ) as refused:
            drafting_of(config, served)
        assert str(tmp_path) in str(refused.value)


def test_a_target_without_a_known_draft_model_is_told_what_to_do():
    target = ServedModel("fake", engine(), FakeText())
    with pytest.raises(UsageError, match="--draft-model FILE"):
        SERVER_DRAFTERS.get("model")(ServeConfig(model="unknown"), target)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model", "torch"),
        ("model", "llamacpp"),
        ("cacheback", "torch"),
        ("lookup", "llamacpp"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("lookup", "torch"), ("cacheback", "llamacpp"))
        ),
    ],
)
def test_real_engines_write_the_same_with_every_drafter(kind, name):
    """On the bundled family: the target in float32 (level exact) or GGUF, and its draft model on llama.cpp."""
    config = ServeConfig(model="tiny", engine=kind, threads=1, kv_tokens=4000, server_drafter=name)
    target = ENGINES.get(kind)(config)
    prompts = [target.text.encode(text) for text in ("The river is", "A b c d a b c d a b", "def add(a, b):")]

    def written(drafter):
        return counted(drafter, target.engine, prompts, text=target.text, max_step_tokens=64)

    alone, _ = written(Broken())
    drafted, stats = written(SERVER_DRAFTERS.get(name)(config, target))
    assert drafted == alone
    assert stats.own.tokens > 0
    if name == "model":
        assert stats.steps < 30  # of 40 tokens each


class Held(ServerDrafter):
    """Drafts nothing, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        self.begun.set()
        assert self.go_on.wait(60)
        return [ask.chain(()) for ask in asks]


async def test_a_verdict_leaves_before_the_server_drafts():
    """And KV blocks that come free meanwhile are told to nobody until the drafter has ended: it may write in them."""
    drafter, target, blank = Held(), engine(), list[int]()
    target.forget = blank.extend
    async with running(target, drafter=drafter, policy=FOUR) as network:
        asking = asyncio.ensure_future(ask(network, PROMPT, NoneDrafter()))
        await until(drafter.begun.is_set)
        [session] = network.manager.loop.machine.sessions.values()
        await until(lambda: not len(session.outbox))
        assert tuple(session.sequence.tokens) == (*PROMPT, EXPECTED[0])
        network.manager.loop.remove(session)
        assert not session.sequence.memory.blocks and not blank
        drafter.go_on.set()
        await until(lambda: blank)
        await cancelled(asking)
