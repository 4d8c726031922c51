"""The learned cost of a step: right from the wrong seed, in spite of noise and pauses, after the machine changed."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw_profiles import catalog
from hw_profiles.learned import FIRST_FITS, LEARN_EVERY, CostModel, LearnedCost
from hw_profiles.step_cost import Roofline, TargetCost
from tests.pace import units

TARGETS = [
    catalog.target(name) for name in ("dense-8b", "dense-14b", "dense-32b", "dense-70b", "moe-30b-a3b")
]


def law(accelerator, target="dense-8b", bits=16):
    return TargetCost(catalog.accelerator(accelerator), catalog.target(target).at(bits))


def steps(rng, count, context=1024, longest=4):
    """(tokens, contexts, sessions) of a server: a changing number of sessions, drafts, now and then a prompt."""
    sessions, chance = 0, np.random.default_rng(rng.randrange(1 << 32))
    for number in range(count):
        if number % 20 == 0:
            sessions = rng.randint(1, 64)  # there, in a rush or a lull
        sessions = min(64, max(1, sessions + rng.choice((-1, 0, 0, 1))))
        drafted = rng.randint(0, longest)
        tokens = sessions + int(chance.integers(0, drafted + 1, sessions).sum())
        contexts = int((context * chance.uniform(0.5, 1.5, sessions)).astype(int).sum())
        prompt = rng.randint(20, 512) if rng.random() < 0.05 else 0
        yield tokens + prompt, contexts + prompt, sessions + (prompt > 0)


def taught(truth, seed, rng, count, noise=0.05, pauses=0.02, **options):
    """A model after `count` steps of `truth`, some of which a pause made 5 to 100 times as long."""
    model = CostModel(seed)
    for step in steps(rng, count, **options):
        seconds = truth.verify_s(*step) * rng.lognormvariate(0, noise)
        model.observe(*step, seconds * (rng.uniform(5, 100) if rng.random() < pauses else 1))
    return model


def errors(cost, truth, rng, count=300, **options):
    """Ascending: how far the predictions for other steps of the same kind are off."""
    return sorted(
        abs(cost.verify_s(*step) / truth.verify_s(*step) - 1) for step in steps(rng, count, **options)
    )


@pytest.mark.parametrize("accelerator", catalog.names("accelerators"))
@pytest.mark.parametrize("shape", TARGETS, ids=lambda shape: shape.id)
def test_every_law_of_the_catalog_is_learned(accelerator, shape):
    """Noise of 5 %, every fiftieth step an outlier; from the right seed, a wrong one and none."""
    truth = TargetCost(catalog.accelerator(accelerator), shape.at(4 if shape.params > 2e10 else 16))
    wrong = law("rtx-4090" if accelerator != "rtx-4090" else "agx-orin", "dense-14b")
    for seed, median, most in ((truth, 0.02, 0.04), (wrong, 0.03, 0.1), (Roofline(), 0.04, 0.12)):
        rng = random.Random(f"{accelerator} {shape.id}")
        found = errors(taught(truth, seed, rng, 1000).cost, truth, rng)
        assert found[len(found) // 2] < median and found[int(0.95 * len(found))] < most, seed


def test_what_one_more_token_costs_is_learned_too():
    """Planning compares costs of steps that differ in a few tokens: 8 more are free below the knee, dear above."""
    truth, rng = law("a100-80"), random.Random(5)
    cost = taught(truth, Roofline(), rng, 3000).cost
    for tokens in (8, 32, 64, 256, 320):
        now_s = truth.verify_s(tokens, 16000, 16)
        of_eight = (truth.verify_s(tokens + 8, 16000, 16) - now_s) / now_s
        assert (
            cost.verify_s(tokens + 8, 16000, 16) - cost.verify_s(tokens, 16000, 16)
        ) / now_s == pytest.approx(of_eight, abs=0.04)


@pytest.mark.parametrize("factor", [0.001, 0.03, 30, 1000])
def test_a_few_steps_are_enough_to_right_a_seed_that_is_wrong_by_a_factor(factor):
    """And one that is slow because it is the first one does no harm."""
    truth, rng = law("agx-orin"), random.Random(1)
    model = CostModel(LearnedCost.of(truth).times(factor))
    for number in range(FIRST_FITS[0]):
        model.observe(8 + number, 8000, 8, truth.verify_s(8 + number, 8000, 8) * (1 if number else 40))
    assert errors(model.cost, truth, rng)[-1] < 0.1 and model.error < 0.05


def test_what_no_step_showed_stays_as_the_seed_has_it_to_scale():
    truth, model = law("a100-80"), CostModel(law("a100-80"))
    for _ in range(400):
        model.observe(4, 4096, 4, 3 * truth.verify_s(4, 4096, 4))
    for step in ((300, 4096, 4), (4, 100_000, 4), (64, 16_000, 16)):
        assert model.cost.verify_s(*step) == pytest.approx(3 * truth.verify_s(*step), rel=0.1)


def test_a_machine_that_hangs_now_and_then_is_not_followed():
    truth, model = law("a100-80"), CostModel(law("a100-80"))
    for number in range(400):
        model.observe(32, 16000, 16, truth.verify_s(32, 16000, 16) * (1000 if number % 5 == 4 else 1))
    assert model.cost.verify_s(32, 16000, 16) == pytest.approx(truth.verify_s(32, 16000, 16), rel=0.1)
    assert model.error < 0.1  # the median


@pytest.mark.parametrize("factor", [2.0, 0.4])
def test_a_machine_that_became_slower_or_faster_for_good_is_followed(factor):
    truth, rng = law("a100-80"), random.Random(2)
    model = taught(truth, truth, rng, 2000)
    before = model.error
    for count, step in enumerate(steps(rng, 250)):
        model.observe(*step, factor * truth.verify_s(*step) * rng.lognormvariate(0, 0.05))
        if count == 40:
            assert model.error > 5 * before  # seen to be wrong at once
    found = errors(model.cost.times(1 / factor), truth, rng)
    assert found[len(found) // 2] < 0.1 and model.error < 0.15


def test_the_cost_is_a_snapshot():
    """A policy that keeps one sees no change in it; a new one comes with every fit and not between."""
    model, seen = CostModel(), []
    for number in range(1, 5 * LEARN_EVERY + 1):
        before = model.cost
        kept = before.verify_s(20, 1000, 4)
        model.observe(20, 1000, 4, 0.01 * number)
        assert before.verify_s(20, 1000, 4) == kept
        if model.cost is not before:
            seen.append(number)
    assert seen == [*FIRST_FITS, *range(LEARN_EVERY, 5 * LEARN_EVERY + 1, LEARN_EVERY)]
    assert model.steps == 5 * LEARN_EVERY


def test_before_the_first_step_the_seed_holds():
    seed = law("h200")
    assert CostModel(seed).cost is seed and CostModel(seed).error == 0.0


def test_steps_that_took_no_time_teach_nothing():
    model = CostModel()
    for _ in range(50):
        model.observe(4, 100, 1, 0.0)
    assert model.steps == 0 and model.cost == Roofline()


def test_a_table_says_what_it_was_made_of():
    for target, bits in (("dense-8b", 16), ("moe-30b-a3b", 8)):
        seed = law("a100-80", target, bits)
        table = LearnedCost.of(seed)
        for step in ((1, 0, 0), (7, 9000, 3), (200, 50_000, 40), (1000, 1, 1), (4000, 4000, 1)):
            assert table.verify_s(*step) == pytest.approx(seed.verify_s(*step), rel=1e-6)
        assert table.verify_s(0, 5000, 5) == 0.0
        low, high = seed.verify_s(40, 0, 0), seed.verify_s(41, 0, 0)
        assert low <= table.verify_s(40.5, 0, 0) <= high


seconds = st.floats(1e-7, 1e5)
step = st.tuples(st.integers(1, 5000), st.integers(0, 10**7), st.integers(1, 2000), seconds)


@given(
    st.lists(step, min_size=1, max_size=80), st.sampled_from([Roofline(), law("a100-80"), law("agx-orin")])
)
def test_whatever_the_clock_says_costs_stay_finite_and_monotone(observed, seed):
    model = CostModel(seed)
    for each in observed:
        model.observe(*each)
    cost, before = model.cost, 0.0
    for tokens in (0.5, 1, 2, 8, 9, 31, 64, 100.5, 500, 1024, 1025, 9000):
        now = cost.verify_s(tokens, 1000, 4)
        assert math.isfinite(now) and now >= before > -1 and now > 0
        assert cost.verify_s(tokens, 2000, 4) >= now <= cost.verify_s(tokens, 1000, 5)
        before = now
    assert math.isfinite(model.error)


@pytest.mark.timed
def test_learning_and_asking_are_cheap():
    """A step costs 12 us here, a question 0.5 us."""
    rng = random.Random(1)
    observed = [(*each, rng.uniform(0.01, 0.02)) for each in steps(rng, 640)]
    model, questions = CostModel(), [each[:3] for each in observed]

    def learn():
        for each in observed:
            model.observe(*each)

    def ask():
        verify_s = model.cost.verify_s
        for tokens, contexts, sessions in questions:
            verify_s(tokens, contexts, sessions)

    assert units(learn, 7) < len(observed) * 0.25
    assert units(ask, 7) < len(observed) * 0.016


def test_the_stairs_of_an_engine_that_pads_its_steps_are_seen():
    """5 rows cost what 8 do: a line through both would call the first of them cheap, and the others dear."""
    model = CostModel(row_step=4)
    for _ in range(40):
        for rows in (1, 4, 5, 8, 12, 100):
            model.observe(rows, 0, 1, 0.1 + 0.004 * -(-rows // 4) * 4)
    seconds = [model.cost.verify_s(rows, 0, 1) for rows in (1, 4, 5, 8, 9)]
    assert seconds[0] == seconds[1] and seconds[2] == seconds[3]
    assert seconds == pytest.approx([0.116, 0.116, 0.132, 0.132, 0.148], rel=0.03)


def test_what_a_second_row_costs_is_seen():
    """llama.cpp on one core, SmolLM2: a product of a matrix with two rows takes more than twice as long as with one."""
    real = {1: 16.5, 2: 37.3, 3: 42.9, 4: 45.1, 5: 47.9, 8: 66.6, 16: 100.0, 32: 160.0}
    model = CostModel()
    for rows in (1, 8, 16, 32, 2, 4) * 2:
        model.observe(rows, 0, 1, real[rows] / 1000)
    assert model.cost.verify_s(2, 0, 1) > 1.8 * model.cost.verify_s(1, 0, 1), (
        "what is measured at the start tells"
    )
    for _ in range(20):
        for rows in (1, 2, 3, 5):
            model.observe(rows, 0, 1, real[rows] / 1000)
    assert [1000 * model.cost.verify_s(rows, 0, 1) for rows in real] == pytest.approx(
        [*real.values()], rel=0.08
    )
