"""Draft trees through the whole system, and those of a drafter beside the target."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.lengths.fixed import FixedLength
from opensled.core.messages import DraftBlock, DraftToken, SamplingParams, TreeNode
from opensled.core.trees import path_to, together
from scheduler.estimates import DeviceBook
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from tests.drafters_beside import EXPECTED, Returns, counted, engine
from tests.fakes import IMPATIENT, FakeEngine, FakeText, OracleDrafter, Weather, continuation, next_token
from tests.system import CALM, FOREVER, Answer, ask, running
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.options.serve_config import ServeConfig
from verify_server.round.draft_stage import DraftStage
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.loaded_model import ServedModel
from verify_server.round.offer import NO_DRAFT, DraftLimits
from verify_server.round.server_source import ServerDrafts
from verify_server.start.command import session_limits

EIGHT = Fcfs(float("inf"), 8)


def wrong(id: int) -> int:
    return 1 + id % 40


class TwoWays(ServerDrafter):
    """At each place a wrong token that looks likelier, and beside it the right one, which the text goes on behind."""

    def __init__(self, parents: Sequence[object] = ()) -> None:
        self._parents = tuple(parents)  # () = those of the tree
        self.asked: list[Ask] = []

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        self.asked += asks
        return [Proposal(self._tree(ask)) for ask in asks]

    def _tree(self, ask: Ask) -> DraftBlock:
        text, tokens, parents, last = list(ask.tokens), [], [], -1
        for _ in range(3):
            right = next_token(text)
            tokens += [DraftToken(wrong(right), 0.6), DraftToken(right, 0.4)]
            parents += [last, last]
            last = len(tokens) - 1
            text.append(right)
        return DraftBlock(ask.length, tuple(tokens), self._parents or tuple(parents))


def test_a_tree_brings_what_no_chain_of_it_would():
    texts, stats = counted(TwoWays(), engine(), policy=EIGHT)
    assert texts == [EXPECTED]
    assert stats.steps <= 12 and stats.own.accepted >= 28


def test_a_tree_has_four_tokens_for_each_of_a_chain():
    """Four of the six, asked for one: two of each step stand."""
    texts, stats = counted(TwoWays(), engine(), policy=Fcfs(float("inf"), 1))
    assert texts == [EXPECTED]
    assert 13 <= stats.steps <= 15


def test_where_no_trees_are_taken_none_is_asked_for():
    drafter = TwoWays()
    texts, stats = counted(drafter, FakeEngine(num_blocks=400, facts={"max_tree": 0}), policy=EIGHT)
    assert texts == [EXPECTED]
    assert drafter.asked and not any(ask.max_of_tree for ask in drafter.asked)
    assert stats.own.tokens == 0


@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
def test_a_chain_of_the_device_and_a_tree_of_the_server_are_one_tree(acceptance):
    texts, stats = counted(
        TwoWays(), engine(), device=lambda: OracleDrafter(acceptance, seed=1), policy=EIGHT
    )
    assert texts == [EXPECTED]
    assert stats.own.accepted > 10


BAD = {
    "a parent behind its child": (-1, 2, 1, 1, 3, 3),
    "its own parent": (0, -1, 1, 1, 3, 3),
    "below the text": (-2, -1, 1, 1, 3, 3),
    "too few": (-1, -1),
    "too many": (-1,) * 9,
    "half a parent": (-1, -1, 0.5, 1, 3, 3),
    "a word": ("a",) * 6,
    "nothing": (None,) * 6,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_tree_costs_drafts_only(name):
    texts, stats = counted(TwoWays(BAD[name]), engine(), policy=EIGHT)
    assert texts == [EXPECTED]
    assert stats.own.tokens == 0 and stats.steps == 40


def test_a_tree_ends_before_an_id_that_the_target_does_not_know():
    block = DraftBlock(5, tuple(DraftToken(id, 0.5) for id in (1, 2, 99, 3)), (-1, -1, 0, 1))

    ask = Ask(7, "t", [1, 2, 3, 4, 5], 2, SamplingParams(), b"", max_of_tree=8)
    [drafted] = DraftStage({"": Returns(lambda asks: [Proposal(block)])}, 50).run([ask])
    (made, _) = drafted.proposals[7]
    assert made.block == DraftBlock(5, block.tokens[:2], (-1, -1))


class Text:
    """A sequence of 100 tokens: how many more may follow, and how many its memory holds."""

    def __init__(self, useful: int = 50, free: int = 50) -> None:
        self.useful, self.free = useful, free

    def __len__(self) -> int:
        return 100


LIMITS = DraftLimits(1000, max_draft=4, max_tree=6)
BUSHY = (-1, 0, -1, 1, 0, 2, 3)  # the likeliest tokens first


def own_tree(*parents: int) -> ServerDrafts:
    draft = ServerDrafts(DeviceBook().of("t", ""))
    tokens = tuple(DraftToken(10 + place, 0.5) for place in range(len(parents)))
    draft.take(Proposal(DraftBlock(5, tokens, parents)), len(parents))
    return draft


def verified(
    text: Text, most: int | None = None, device: DraftBlock = NO_DRAFT, limits: DraftLimits = LIMITS
) -> set[int]:
    return set(own_tree(*BUSHY).cut(limits, text, most, 0.0, device).verified.ids)


def test_how_much_of_a_tree_is_verified():
    assert len(verified(Text())) == 6, "the largest tree"
    assert len(verified(Text(), 3)) == 3, "what was planned"
    assert len(verified(Text(free=5))) == 5, "what memory holds"
    assert len(verified(Text(free=0))) == 4, "as much as a chain, for which others may lose memory"
    assert len(verified(Text(useful=1), None)) == 2, "one more token may follow: the two first ones"
    assert not verified(Text(useful=0))


def test_beside_a_device_a_tree_takes_what_its_draft_leaves():
    device = DraftBlock(100, tuple(map(DraftToken, (1, 2, 3))))
    assert len(verified(Text(), None, device)) == 3
    assert len(verified(Text(free=4), None, device)) == 1
    assert not verified(Text(), None, DraftBlock(100, device.tokens, (-1, 0, 0))), "two trees are not joined"
    assert not verified(Text(), None, device, LIMITS._replace(tree_reads=150))


def test_what_stands_of_a_tree_is_learned_by_its_depth():
    draft = own_tree(-1, -1, 0, 1)
    before = draft.estimate.forecast
    assert draft.judge(draft.cut(LIMITS, Text(), None, 0.0), (11, 13, 7)) == 2
    assert draft.estimate.forecast.first > before.first and draft.estimate.forecast.later > before.later


def paths(block: DraftBlock) -> set[tuple[int, ...]]:
    parents = block.parents or range(-1, len(block.tokens) - 1)
    return {tuple(block.ids[place] for place in path_to(parents, node)) for node in range(len(block.tokens))}


ids = st.integers(0, 2)
trees = st.lists(st.tuples(ids, st.floats(0, 0.999)), min_size=1, max_size=8).map(
    lambda nodes: DraftBlock(
        5,
        tuple(DraftToken(id) for id, _ in nodes),
        tuple(int(share * (place + 1)) - 1 for place, (_, share) in enumerate(nodes)),
    )
)
chains = st.lists(ids, max_size=5).map(lambda found: DraftBlock(5, tuple(map(DraftToken, found))))


@given(chains, trees)
def test_a_chain_and_a_tree_are_joined(chain, tree):
    both = together(chain, tree)
    assert paths(both) == paths(chain) | paths(tree)
    assert all(parent < place for place, parent in enumerate(both.parents))
    if chain.tokens:
        assert len(paths(both)) == len(both.tokens), "each path is there once"


# -- the whole system in one process ----------------------------------------------------------------------------


STORM = Weather(loss=0.2, duplicate=0.1, reorder=0.2, seed=5)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9], [3, 1, 4, 1, 5, 9]]


class TreeOracle(OracleDrafter):
    """Knows the fake target, and puts what it would draft among other branches, each time in another place."""

    def propose_tree(self) -> Iterator[TreeNode]:
        context, last, count = list(self.truth), -1, 0
        while True:
            right = next_token(context)
            context.append(right)
            siblings = [right, 1 + right % 40, 1 + (right + 7) % 40]
            self._random.shuffle(siblings)
            parent = last
            for id in siblings:
                yield TreeNode(DraftToken(id, 0.5), parent)
                last = count if id == right else last
                count += 1


async def answers(
    engine: FakeEngine, policy, weather: Weather, limits: SessionLimits, tree: int
) -> list[Answer]:
    patience = CALM if weather == Weather() else IMPATIENT
    async with running(engine, policy=policy, weather=weather, limits=limits) as network:
        return await asyncio.gather(
            *[
                ask(
                    network, prompt, TreeOracle(0.5, number), SamplingParams(temperature=0.0, max_tokens=60),
                    stop=FixedLength(4, tree=tree), patience=patience,
                )
                for number, prompt in enumerate(PROMPTS)
            ]
        )  # fmt: skip


@pytest.mark.parametrize("policy", [Fcfs(FOREVER), Goodput(0.5)], ids=["fcfs", "goodput"])
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_with_trees_the_text_is_the_targets(policy, weather):
    found = asyncio.run(answers(FakeEngine(num_blocks=200), policy, weather, SessionLimits(linger=0.2), 12))
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert list(answer.tokens) == continuation(prompt, 60)
    if weather == Weather() and isinstance(policy, Fcfs):
        # Of 12 tokens in rows of three one path is right: 4 are accepted in a round, and one comes after them.
        rounds = [round for answer in found for round in answer.rounds[1:-1]]
        assert sum(len(round.tokens) for round in rounds) / len(rounds) == pytest.approx(5, abs=0.3)


def test_a_sequence_may_ask_for_what_server_and_engine_allow():
    limits = session_limits(
        ServeConfig(max_tree=20), ServedModel("fake", FakeEngine(), FakeText()), Tenants()
    )

    async def told(most: int) -> int:
        engine = FakeEngine()
        info = replace(engine.info, max_tree=most)
        engine_type = type("Engine", (FakeEngine,), {"info": property(lambda self: info)})
        async with running(engine_type(), limits=limits) as network:
            return network.manager.sequence_limits.max_tree

    assert [asyncio.run(told(most)) for most in (64, 8, 0)] == [20, 8, 0]


async def test_a_tree_that_would_hold_others_up_is_cut():
    """Each branch would read the text by itself, but there is time for one only."""

    def one_branch(segments):
        assert not any(segment.parents for segment in segments)

    engine = FakeEngine(num_blocks=200, facts={"tree_reads": 1}, before=one_branch)
    found = await answers(engine, Fcfs(FOREVER), Weather(), SessionLimits(linger=0.2), 12)
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert list(answer.tokens) == continuation(prompt, 60)


def test_a_server_of_chains_gets_chains():
    limits = SessionLimits(linger=0.2, max_tree=0)
    found = asyncio.run(answers(FakeEngine(num_blocks=200), Fcfs(FOREVER), Weather(), limits, 12))
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert list(answer.tokens) == continuation(prompt, 60)
        assert answer.rounds and all(round.drafted <= 4 for round in answer.rounds)
