"""Look-ahead over several outcomes of a verdict, with llama.cpp and the committed draft model."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import pytest

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import DrafterOptions
from edge_client.drafters.branching import _is_hit
from opensled.messages import DraftToken, SamplingParams
from opensled.noise import noise_key
from opensled.sampling import Sampler, SparseSampler
from tests.tiny_drafts import TEXT, TINY_DRAFT, tiny_tokenizer

pytest.importorskip("llama_cpp")

PROMPT = tiny_tokenizer().encode(TEXT)
BLOCK = 4


@pytest.fixture(scope="module")
def factory():
    return DRAFTERS.get("llamacpp")(str(TINY_DRAFT), 1)


@pytest.fixture
def drafter_with(factory):
    made = []

    def create(outcomes):
        factory.branches = outcomes
        made.append(factory.create())
        made[-1].clock = lambda: 0.0  # verdicts always leave time enough
        return made[-1]

    yield create
    factory.branches = 0
    for drafter in made:
        drafter.close()


def sampler(temperature, seed=1, kind=Sampler):
    return kind(SamplingParams(temperature=temperature, seed=seed), noise_key(seed))


def block_of(drafter, count=BLOCK):
    return list(islice(drafter.propose(), count))


def ids(tokens):
    return [token.id for token in tokens]


def finish(steps):
    return sum(1 for _ in steps)


@dataclass(frozen=True)
class RecordingSampler(Sampler):
    """Keeps the logits behind every draw, by position; branches draw at the same ones."""

    rows: dict[int, list[np.ndarray]] = field(default_factory=lambda: defaultdict(list))

    def draw(self, logits, position, emitted=None):
        self.rows[position].append(logits.copy())
        return super().draw(logits, position, emitted)

    def draw_with_rival(self, logits, position, emitted=None):
        self.rows[position].append(logits.copy())
        return super().draw_with_rival(logits, position, emitted)


@pytest.fixture
def assert_on_path(drafter_with):
    """What `drafter` proposes was drawn from the logits of a drafter that has seen nothing but that text.

    A branch that was hit leaves its cells in another order, so sums round differently: 0.043 standard deviations of a
    row were the largest of 600. A wrong cell makes it 0.5 or more.
    """
    fresh = drafter_with(0)

    def check(drafter, truth, count):
        text = list(truth)
        for token in block_of(drafter, count):
            draw = replace(drafter.sampler, rows=defaultdict(list))
            fresh.begin(text, draw)
            next(fresh.propose())
            expected = draw.rows[len(text)][0]
            drawn_from = [
                row
                for row in drafter.sampler.rows[len(text)]
                if np.abs(row - expected).max() <= 0.1 * expected.std()
            ]
            assert token.id in [draw.draw(row, len(text)).id for row in drawn_from]
            text.append(token.id)
        assert len(text) == len(truth) + count

    return check


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_what_a_verdict_hits_is_at_hand_and_what_would_have_been_drafted_anyway(
    drafter_with, assert_on_path, temperature
):
    drafter, truth = drafter_with(BLOCK + 1), list(PROMPT)
    drafter.begin(truth, sampler(temperature, kind=RecordingSampler))
    for place in (0, 3, 1, BLOCK, 2):
        block = block_of(drafter)
        known = drafter.ready
        assert finish(drafter.look_ahead(block, 3)) == BLOCK + 1 + 3 - known + 3 * (BLOCK + 1)
        line = next(branch.line for branch in drafter._branches if len(branch.line) == place + 1)
        drafter.commit(line)
        truth += line
        assert drafter.ready == 3
        assert_on_path(drafter, truth, 6)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_any_history_drafts_what_a_drafter_without_one_drafts(drafter_with, assert_on_path, temperature):
    """Verdicts of all kinds, after look-ahead that was interrupted anywhere."""
    chance, drafter, truth = random.Random(3), drafter_with(2), list(PROMPT)
    drafter.begin(truth, sampler(temperature, kind=RecordingSampler))
    hits = 0
    for _ in range(50):
        block = block_of(drafter, chance.randrange(1, 6))
        finish(islice(drafter.look_ahead(block, 4), chance.randrange(14)))
        news = verdict(chance, drafter, block)
        hits += any(_is_hit(branch, news) for branch in drafter._branches)
        drafter.commit(news)
        truth += news
        assert_on_path(drafter, truth, 3)
    assert hits > 5


def verdict(chance, drafter, block):
    """Some of the block stands; then comes a rival, the main line, or anything."""
    place = chance.randrange(len(block) + 1)
    accepted = ids(block)[:place]
    branch = next((each for each in drafter._branches if len(each.line) == place + 1), None)
    if branch is not None and chance.random() < 0.7:
        return branch.tokens() if chance.random() < 0.3 else list(branch.line)
    if chance.random() < 0.3:
        return ids(drafter.drafted)[: place + 1]
    return [*accepted, chance.randrange(2048)]


def test_a_rival_is_the_runner_up_under_the_same_noise():
    logits = np.random.default_rng(1).normal(size=300).astype(np.float32) * 3
    for temperature in (0, 0.7):
        for position in range(50):
            draw = sampler(temperature)
            token, rival, lead = draw.draw_with_rival(logits, position)
            assert token == draw.draw(logits, position)
            without = logits.copy()
            without[token.id] = -1e9
            assert rival == draw.draw(without, position).id != token.id
            assert lead >= 0
            nearer = logits.copy()
            nearer[rival] += (lead + 0.01) * (temperature or 1)
            assert draw.draw(nearer, position).id == rival


def test_the_likeliest_outcomes_come_first(drafter_with):
    drafter = drafter_with(2)
    drafter.begin(PROMPT, sampler(0.8))
    block = block_of(drafter, 6)
    finish(drafter.look_ahead(block, 1))
    leads = [drafter._runners_up[len(PROMPT) + index][2] for index in range(7)]
    stands, chances = 1.0, []
    for lead in leads:
        chances.append(stands / (1 + np.exp(lead)))
        stands /= 1 + np.exp(-lead)
    expected = sorted(range(7), key=lambda index: -chances[index])[:2]
    assert [len(branch.line) - 1 for branch in drafter._branches] == expected


def test_rule_ratio_and_tokens_of_another_drafter_have_no_rivals(drafter_with):
    drafter = drafter_with(3)
    drafter.begin(PROMPT, sampler(0.8, kind=SparseSampler))
    assert finish(drafter.look_ahead(block_of(drafter), 2)) == 3
    drafter.begin(PROMPT, sampler(0.8))
    foreign = [DraftToken(7), DraftToken(8)]
    assert finish(drafter.look_ahead(foreign, 2)) == 3 + 2  # only the bonus token has one
    drafter.commit([7, 8, drafter._branches[0].line[-1]])
    assert drafter.ready == 2


def test_a_token_without_a_runner_up_has_no_rival(drafter_with):
    """A branch would be the main line once more, and be taken for it: what is at hand there would be lost."""
    drafter = drafter_with(2)
    params = SamplingParams(temperature=0.8, top_k=1, seed=1)
    drafter.begin(PROMPT, Sampler(params, noise_key(1)))
    block = block_of(drafter)
    assert finish(drafter.look_ahead(block, BLOCK)) == BLOCK + 1, "the main line only"
    drafter.commit([*ids(block), drafter.drafted[BLOCK].id])
    assert drafter.ready == BLOCK


def test_branches_end_with_the_context(drafter_with):
    drafter = drafter_with(2)
    prompt = (PROMPT * 400)[: drafter.context_length - 6]
    drafter.begin(prompt, sampler(0))
    block = block_of(drafter, 2)
    assert finish(drafter.look_ahead(block, 50)) == 4 + sum(
        drafter.context_length - len(prompt) - len(branch.line) for branch in drafter._branches
    )


def test_a_block_of_another_drafter_that_reaches_the_end_of_the_context_has_no_branches(drafter_with):
    drafter = drafter_with(2)
    drafter.begin(PROMPT, sampler(0.8))
    room = drafter.context_length - len(PROMPT)
    foreign = [DraftToken(7)] * room
    drafter.begin(PROMPT, sampler(0.8))
    drafter._runners_up.update({len(PROMPT) + at: (token.id, 5, 0.1) for at, token in enumerate(foreign)})
    assert finish(drafter.look_ahead(foreign, BLOCK)) == 0


def test_a_chain_hands_the_number_on():
    drafter = DRAFTERS.get("chain:lookup,llamacpp")(str(TINY_DRAFT), 1, DrafterOptions(branches=2)).create()
    assert drafter._last.branches == 2
    drafter.close()


def test_what_would_not_end_before_the_verdict_is_not_begun(drafter_with):
    """Each pass of a branch takes a second, each verdict 5.5."""
    drafter, now = drafter_with(2), [0.0]
    drafter.clock = lambda: now[0]
    drafter.begin(PROMPT, sampler(0.8))
    forward = drafter.forward_branch

    def slow(*arguments):
        now[0] += 1
        return forward(*arguments)

    drafter.forward_branch = slow
    passes = []
    for _ in range(4):
        sent, block = now[0], block_of(drafter)
        for _ in drafter.look_ahead(block, 4):
            if now[0] - sent > 5.5:
                break
        passes.append(now[0] - sent)
        now[0] = max(now[0], sent + 5.5)
        drafter.commit([5])
    assert passes == [6, 5, 5, 5]  # at first nothing is known
