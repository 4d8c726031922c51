"""Rule `ratio` keeps the target's distribution: by enumeration, and by counting what it really draws."""

import math
import threading

import numpy as np
import pytest
import torch

from edge_client.lengths.base import pull_tokens
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from opensled.core.errors import Unsupported
from opensled.core.messages import DraftToken, Open, SamplingParams, SparseDistribution
from opensled.core.sampling import SparseSampler, sampler, softmax
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.ratio_law import World, largest_error
from tests.rule_contract import decide_alone
from tests.system import ask, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.rules.base import DraftCheck, decided_ids
from verify_server.rules.ratio import Ratio
from verify_server.rules.served import ServedRules

PARAMS = {
    "plain": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.5),
    "top_k": SamplingParams(temperature=0.8, top_k=3),
    "top_p": SamplingParams(temperature=0.9, top_p=0.8),
    "min_p": SamplingParams(temperature=0.9, min_p=0.2),
    "penalties": SamplingParams(1.0, presence_penalty=0.7, frequency_penalty=-0.4, repetition_penalty=1.6),
    "greedy": SamplingParams(temperature=0),
}
BOUND = {np.float32: 1e-6, np.float64: 1e-12}


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_every_way_a_round_can_go_adds_up_to_the_target(params, dtype):
    for seed in range(6):
        world = World.random(seed, dtype, params=params)
        assert largest_error(world, wire=dtype is np.float32) <= BOUND[dtype]


@pytest.mark.parametrize("shape", [(2, 3, 2), (5, 2, 5), (6, 1, 2)], ids=str)
def test_other_sizes_and_full_draft_distributions(shape):
    vocab, length, kept = shape
    for seed in range(3):
        assert largest_error(World.random(seed, np.float64, vocab, length, kept)) <= 1e-12


def test_the_residual_obeys_top_k():
    rows = TorchScores(torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    source = SparseDistribution((3,), (1.0,))
    params = SamplingParams(temperature=1.0, top_k=2)
    drawn = {
        rows.sample_residual(0, source, params, number.to_bytes(16, "little"), 5) for number in range(50)
    }
    assert drawn == {2}


def drafted(world: World, text: tuple[int, ...], key: bytes, stop: FixedLength) -> tuple[DraftToken, ...]:
    """A block as a device drafts it after `text`: its sampler over the draft's logits, its stop rule."""
    draw = SparseSampler(world.params, key)

    def proposals():
        own = text
        while len(own) <= world.length:
            source = world.draft[own]
            logits = np.full(world.vocab, -1e9)
            logits[list(source.ids)] = np.log(source.probs)
            token = draw.draw(logits, len(own))
            own = (*own, token.id)
            yield token

    limit = world.length - len(text)
    return tuple(pull_tokens(stop, proposals(), stop.most(limit), lambda: False))


def written(world: World, number: int, stop: FixedLength) -> tuple[int, ...]:
    """`length` + 1 tokens, in as many rounds as they take, under noise of their own."""
    key, rule = number.to_bytes(16, "little"), Ratio(secret=b"secret" * 4)
    text: tuple[int, ...] = ()
    while len(text) <= world.length:
        draft = drafted(world, text, key, stop)
        question = DraftCheck(draft, len(text), world.params, key)
        rows = TorchScores(world.rows((*text, *question.ids))[len(text) :])
        text = (*text, *decided_ids(question, decide_alone(rule, question, rows)))
    return text[: world.length + 1]


def chi_square(counts: np.ndarray, law: np.ndarray) -> float:
    """Standard deviations by which counts miss a law: Wilson and Hilferty's normal form of Pearson's sum."""
    expected = law.ravel() * counts.sum()
    rare = expected < 5  # put together: Pearson's sum wants cells that are not nearly empty
    observed = np.append(counts.ravel()[~rare], counts.ravel()[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 1e-9))
    freedom = len(expected) - 1
    ratio = float(((observed - expected) ** 2 / expected).sum()) / freedom
    return (ratio ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))


def misses(world: World, rounds: int = 3000, stop: FixedLength = FixedLength(2)) -> list[float]:
    """For the first 1, 2, ... tokens together: by how much what was written misses the target's joint law."""
    law = world.law()
    counts = np.zeros_like(law)
    for number in range(rounds):
        counts[written(world, number, stop)] += 1
    axes = range(1, law.ndim + 1)
    return [
        chi_square(counts.sum(tuple(range(kept, law.ndim))), law.sum(tuple(range(kept, law.ndim))))
        for kept in axes
    ]


@pytest.mark.parametrize("seed", [1, pytest.param(12, marks=pytest.mark.long)])
def test_what_is_drawn_has_the_joint_law_of_the_target_at_every_position(seed):
    assert max(misses(World.random(seed, np.float32, params=PARAMS["plain"]))) < 4


def test_a_stop_rule_by_confidence_keeps_the_law():
    """A rule that looked at the drawn token would send likely tokens more often than their distribution says."""
    world = World.random(2, np.float32, params=PARAMS["plain"])
    assert max(misses(world, stop=ConfidenceLength(2, confidence=0.6))) < 4


def test_a_sampler_names_exactly_what_it_draws_from():
    logits = np.random.default_rng(3).normal(0, 2, 300).astype(np.float32)
    params = SamplingParams(temperature=0.7, top_k=5)
    counts = dict.fromkeys(range(300), 0)
    for number in range(2000):
        token = SparseSampler(params, number.to_bytes(16, "little")).draw(logits, 4)
        counts[token.id] += 1
    source = token.drawn_from
    assert len(source.ids) == 5 and sum(source.probs) == pytest.approx(1, abs=1e-6)
    assert token.confidence == pytest.approx(float(softmax(np.sort(logits)[-64:]).max()), rel=1e-5)
    drawn, law = np.array([counts[id] for id in source.ids]), np.array(source.probs)
    assert drawn.sum() == 2000 and abs(chi_square(drawn, law)) < 4


def test_the_same_device_under_rule_match_sends_no_distribution():
    logits = np.zeros(9, np.float32)
    assert sampler(SamplingParams(), b"k" * 16, draft_probs=False).draw(logits, 1).drawn_from is None


class SureDrafter(OracleDrafter):
    """Names a distribution with each token: all of it on that token."""

    def __init__(self, acceptance):
        super().__init__(acceptance)
        self.began = threading.Event()

    def begin(self, prompt, sampler):
        super().begin(prompt, sampler)
        self._sampler = sampler

    def propose(self):
        self.began.set()
        for token in super().propose():
            yield self._sampler.certain(token.id, token.confidence)


async def test_a_whole_answer_over_the_wire():
    limits = SessionLimits(linger=0.2, rules=ServedRules(trust_devices=True))
    drafter = SureDrafter(0.7)
    # Nothing is written before the device drafts: else, on a busy machine, the answer may be over by then
    engine = FakeEngine(before=lambda segments: drafter.began.wait(60))
    async with running(engine, limits=limits) as network:
        params = SamplingParams(temperature=0.0, max_tokens=120)
        answer = await ask(network, [3, 1, 4], drafter, params, rule="ratio")
        assert list(answer.tokens) == continuation([3, 1, 4], 120)
        assert sum(round.accepted for round in answer.rounds) > 10


async def test_a_drafter_that_names_no_distribution_drafts_nothing():
    limits = SessionLimits(linger=0.2, rules=ServedRules(trust_devices=True))
    async with running(FakeEngine(), limits=limits) as network:
        answer = await ask(network, [3, 1, 4], OracleDrafter(0.7), rule="ratio")
        assert list(answer.tokens) == continuation([3, 1, 4], 40) and not answer.rounds


async def test_a_server_that_trusts_nobody_refuses_the_rule():
    async with running(FakeEngine()) as network:
        with pytest.raises(Unsupported, match="--trust-device-probabilities") as caught:
            await network.manager.open(Open((1, 2), rule="ratio"), "t")
        assert caught.value.field == "rule"
