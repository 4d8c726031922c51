"""Draft trees through the whole system in one process: edge loop, wire, manager, loop."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from edge_client.lengths.fixed import FixedLength
from opensled.core.messages import DraftToken, SamplingParams, TreeNode
from scheduler.fcfs import Fcfs
from scheduler.goodput.policy import Goodput
from tests.fakes import (
    IMPATIENT,
    FakeEngine,
    FakeScores,
    FakeText,
    OracleDrafter,
    Weather,
    continuation,
    next_token,
)
from tests.system import CALM, FOREVER, Answer, ask, running
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.base import EngineInfo, Segment
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start.command import session_limits

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


def tokens_per_round(found: list[Answer]) -> float:
    rounds = [round for answer in found for round in answer.rounds[1:-1]]
    return sum(len(round.tokens) for round in rounds) / len(rounds)


@pytest.mark.parametrize("policy", [Fcfs(FOREVER), Goodput(0.5)], ids=["fcfs", "goodput"])
@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
def test_with_trees_the_text_is_the_targets(policy, weather) -> None:
    found = asyncio.run(answers(FakeEngine(num_blocks=200), policy, weather, SessionLimits(linger=0.2), 12))
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert list(answer.tokens) == continuation(prompt, 60)
    if weather == Weather() and isinstance(policy, Fcfs):
        # Of 12 tokens in rows of three one path is right: 4 are accepted in a round, and one comes after them.
        assert tokens_per_round(found) == pytest.approx(5, abs=0.3)


def test_a_sequence_may_ask_for_what_server_and_engine_allow() -> None:
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


class OneBranch(FakeEngine):
    """Each branch would read the text by itself, but there is time for one only."""

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, tree_reads=1)

    def forward(self, segments: Sequence[Segment]) -> FakeScores:
        assert not any(segment.parents for segment in segments)
        return super().forward(segments)


def test_a_tree_that_would_hold_others_up_is_cut() -> None:
    found = asyncio.run(
        answers(OneBranch(num_blocks=200), Fcfs(FOREVER), Weather(), SessionLimits(linger=0.2), 12)
    )
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert list(answer.tokens) == continuation(prompt, 60)


def test_a_server_of_chains_gets_chains() -> None:
    limits = SessionLimits(linger=0.2, max_tree=0)
    found = asyncio.run(answers(FakeEngine(num_blocks=200), Fcfs(FOREVER), Weather(), limits, 12))
    for prompt, answer in zip(PROMPTS, found, strict=True):
        assert list(answer.tokens) == continuation(prompt, 60)
        assert answer.rounds and all(round.drafted <= 4 for round in answer.rounds)
