"""The rule `predicted`: what it learns, and what that is worth on the tiny family's recorded drafts."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from math import exp, log

import numpy as np
import pytest

from edge_client.device import _length_policy
from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.base import pulled
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.predicted import Logistic, Predicted, features
from edge_client.prompt_config import GenerateConfig
from hw_profiles.sysfs import BoardState
from opensled.messages import DraftBlock, DraftToken, SamplingParams
from opensled.noise import noise_key
from opensled.protocol import common_prefix
from opensled.sampling import Sampler
from opensled_testbed.traces import PACKAGED, read_traces


def some_token(chance: random.Random) -> DraftToken:
    confidence = chance.random()
    return DraftToken(1, confidence, None, chance.random() * 3, confidence * chance.random())


def test_it_learns_what_tells_of_rejection():
    """Here entropy tells, and confidence misleads."""

    def truth(token, index):
        return 1 / (1 + exp(-(3 - 2.5 * token.entropy - 0.4 * index)))

    chance, model = random.Random(1), Logistic()
    for _ in range(4000):
        token, index = some_token(chance), chance.randrange(6)
        model.learn(features(token, index), chance.random() < truth(token, index))
    cases = [(some_token(chance), chance.randrange(6)) for _ in range(400)]
    wrong = [abs(model.chance(features(*case)) - truth(*case)) for case in cases]
    assert sum(wrong) / len(wrong) < 0.05  # 0.38 before
    assert model.chance(features(DraftToken(1, 0.9, None, 2.5), 0)) < 0.1


def test_before_the_first_verdict_confidence_means_what_it_says():
    model = Logistic()
    for confidence in (0.1, 0.5, 0.9):
        assert model.chance(features(DraftToken(1, confidence), 3)) == pytest.approx(confidence)
    assert (
        0 < model.chance(features(DraftToken(1, 0.0), 0)) < model.chance(features(DraftToken(1, 1.0), 0)) < 1
    )


def test_only_judged_tokens_teach():
    rule, twin = (Predicted(0.4, board=BoardState) for _ in range(2))
    sure, doubtful = DraftToken(1, 0.9), DraftToken(1, 0.2)
    for _ in range(50):
        rule.answered(DraftBlock(9, (sure, doubtful, sure, doubtful)), 1, 0.01)
        twin.answered(DraftBlock(9, (sure, doubtful, doubtful)), 1, 0.01)
    assert rule._model._weights == twin._model._weights
    before = rule._model._weights
    rule.answered(DraftBlock(9, (sure, doubtful), (-1, -1)), 1, 0.01)  # siblings of a tree
    assert rule._model._weights == before


@pytest.mark.timed
def test_a_token_costs_less_than_twenty_microseconds():
    rule = Predicted(0.4, board=BoardState)
    rule.most(16)
    rule.drafted(3, 0.03)
    rule.answered(DraftBlock(9, (DraftToken(1, 0.9),) * 4), 2, 0.05)
    token, best = DraftToken(1, 0.9, None, 1.0, 0.5), float("inf")
    for _ in range(200):
        started = time.perf_counter()
        for index in range(1, 11):
            rule.goes_on(index)
            rule.belongs(token, index)
        best = min(best, (time.perf_counter() - started) / 10)
    assert best < 60e-6  # 4 us when nothing else runs


TRACES = read_traces(PACKAGED / "tiny-llamacpp.jsonl.gz").items


@dataclass
class Account:
    tokens: int = 0
    rounds: int = 0
    sent: int = 0
    wasted: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def play(make, token_s, base_s=0.06, slope_s=0.001) -> Account:
    """All recorded items under a rule, each after the other; `make` gets the clock."""
    account = Account()
    rule = make(lambda: account.seconds)
    for trace in TRACES:
        place = 0
        while place < len(trace.target_ids):
            length = rule.most(min(8, len(trace.target_ids) - place - 1))
            drafts = Drafts(trace, place)
            block = tuple(pulled(rule, drafts, length, lambda: False))
            accepted = common_prefix([token.id for token in block], trace.target_ids[place:])
            round_s = base_s + slope_s * len(block)
            if drafts.count:
                rule.drafted(drafts.count, drafts.count * token_s)
            account.seconds += drafts.count * token_s + round_s
            if block:
                rule.answered(DraftBlock(place, block), accepted, round_s)
            else:
                rule.streamed(1, round_s)
            account.tokens, account.rounds = account.tokens + accepted + 1, account.rounds + 1
            account.sent, account.wasted = account.sent + len(block), account.wasted + len(block) - accepted
            place += accepted + 1
    return account


class Drafts:
    """What was recorded after a place, and how much of it was drafted."""

    def __init__(self, trace, place):
        self.trace, self.place, self.count = trace, place, 0

    def __iter__(self):
        return self

    def __next__(self):
        found = self.trace.proposed(self.place, self.count)
        if found is None:
            raise StopIteration
        self.count += 1
        return DraftToken(*found)


def predicted(clock) -> Predicted:
    return Predicted(0.4, look_ahead=False, clock=clock, board=BoardState)


@pytest.mark.parametrize(
    "token_s", [0.01, *(pytest.param(each, marks=pytest.mark.long) for each in (0.004, 0.02))]
)
def test_it_is_better_than_every_fixed_length_and_wastes_less(token_s):
    ours = play(predicted, token_s)
    fixed = [play(lambda clock, length=length: FixedLength(length), token_s) for length in (1, 2, 3, 4, 6)]
    assert ours.rate > 1.01 * max(each.rate for each in fixed)
    alike = min(fixed, key=lambda each: abs(each.tokens / each.rounds - ours.tokens / ours.rounds))
    assert ours.wasted / ours.rounds < 0.9 * alike.wasted / alike.rounds


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_sampler_says_entropy_and_margin_when_asked(temperature):
    logits = np.log(np.array([0.1, 0.6, 0.3]))
    plain = Sampler(SamplingParams(temperature=temperature), noise_key(1))
    asked = Sampler(SamplingParams(temperature=temperature), noise_key(1), with_spread=True)
    token = asked.draw(logits, 5)
    assert token.entropy == pytest.approx(-sum(p * log(p) for p in (0.1, 0.6, 0.3)))
    assert token.margin == pytest.approx(0.3)
    assert token[:2] == plain.draw(logits, 5)[:2]
    assert plain.draw(logits, 5).entropy == 0
    certain = asked.draw(np.array([0.0, 1000.0, -np.inf]), 5)
    assert (certain.id, certain.entropy, certain.margin) == (1, 0.0, 1.0)
    assert asked.draw(np.array([3.0]), 5).margin == 1.0


def test_what_the_flags_mean():
    adaptive = _length_policy(GenerateConfig(draft_length=5, battery_floor=0))
    assert isinstance(adaptive, Adaptive) and adaptive.top(16, 9) == 5
    told = _length_policy(GenerateConfig(stop="predicted"))
    assert isinstance(told, Predicted) and told.needs_spread and told.most(16, 3) == 3
    assert _length_policy(GenerateConfig(stop="confidence", draft_tree=0)) == ConfidenceLength(
        4, True, confidence=0.4
    )
    assert _length_policy(GenerateConfig(stop="fixed", draft_length=2)) == FixedLength(2, tree=60)
