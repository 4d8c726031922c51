"""The law of chains and their choice: by hand, by throwing dice, against single drafts and exhaustive search."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, product
from statistics import fmean

import numpy as np
import pytest

from hw_profiles.speculation import reach
from lab.testbed.planner.hierarchy import Below, Candidate, Chain, Hierarchy, Hop, Spec, alone_s
from lab.testbed.planner.hierarchy_blocks import Agreement, Dependence, blocks
from lab.testbed.planner.hierarchy_rounds import Ahead, Rounds

MODELS = ("lookup", "draft", "middle", "target")
PLACES = {"lookup": "device", "draft": "device", "middle": "hub", "target": "cloud"}
SECONDS = {"lookup": 0.001, "draft": 0.012, "middle": 0.03, "target": 0.2}
HOPS = {
    ("device", "device"): Hop(0.0, Ahead.NOTHING),
    ("device", "hub"): Hop(0.004),
    ("device", "cloud"): Hop(0.064),
    ("hub", "cloud"): Hop(0.06),
}


def step(seconds: float, positions: float) -> float:
    return seconds * (1 + 0.02 * positions)


def candidate(model: str, seconds: float | None = None) -> Candidate:
    each = SECONDS[model] if seconds is None else seconds
    return Candidate(model, PLACES[model], lambda positions: step(each, positions))


CANDIDATES = tuple(map(candidate, MODELS))


def agreements(rates: dict[tuple[str, str], float]) -> dict[tuple[str, str], Agreement]:
    return {pair: Agreement.uniform(rate) for pair, rate in rates.items()}


def drawn(draw: random.Random) -> Hierarchy:
    """Any speeds, agreements and round trips."""
    models = tuple(candidate(model, draw.uniform(0.2, 3) * SECONDS[model]) for model in MODELS)
    found = {
        pair: Agreement((tuple(draw.uniform(0.1, 0.97) for _ in range(3)),))
        for pair in combinations(MODELS, 2)
    }
    both = draw.uniform(0.5, 0.95)
    knows = {("draft", "middle", "target"): Dependence(draw.uniform(0.2, 0.9), both, draw.uniform(0.1, both))}
    hops = {
        pair: hop._replace(rtt_s=hop.rtt_s * draw.uniform(0.1, 3), bounds=(0.0, 0.4))
        for pair, hop in HOPS.items()
    }
    return Hierarchy(models, hops, found, knows, longest=5)


# -- exhaustive search ------------------------------------------------------------------------------------


def chain_of(hierarchy: Hierarchy, specs: list[Spec]) -> Chain:
    """A given chain, from the target down; the last of `specs` has no `lowest`."""
    below = None
    for spec in reversed(specs):
        lengths = hierarchy.blocks(spec).lengths
        supplies = below.rounds.restarts(spec.length) if below else alone_s(spec.lower, len(lengths))
        rounds = hierarchy.rounds(spec, float(lengths @ supplies))
        below = Below(spec.lower, spec.length, spec.bound, rounds, below)
    return Chain(hierarchy.candidates[-1], below)


def all_chains(hierarchy: Hierarchy) -> Iterator[Chain]:
    """Every subset of the models, with every length and bound on each of its edges."""
    *drafts, target = hierarchy.candidates
    yield Chain(target, None)
    for count in range(1, len(drafts) + 1):
        for members in combinations(drafts, count):
            path = [target, *reversed(members)]
            if all((low.place, up.place) in hierarchy.hops for up, low in pairwise(path)):
                yield from chains_along(hierarchy, path)


def chains_along(hierarchy: Hierarchy, path: list[Candidate]) -> Iterator[Chain]:
    pairs = list(zip(path, path[1:], [*path[2:], None]))
    choices = [
        product(range(1, hierarchy.longest + 1), hierarchy.hops[low.place, up.place].bounds)
        for up, low, _ in pairs
    ]
    for chosen in product(*choices):
        yield chain_of(hierarchy, [Spec(*pair, *each) for pair, each in zip(pairs, chosen)])


@pytest.mark.parametrize("seed", range(8))
def test_the_shortest_path_is_the_best_of_all_chains(seed):
    hierarchy = drawn(random.Random(seed))
    every = list(all_chains(hierarchy))
    assert len(every) == (1 + 2 * hierarchy.longest) ** 3  # a level is left out, or has a length and a bound
    best, found = max(every, key=lambda chain: chain.rate), hierarchy.best()
    assert found.rate == pytest.approx(best.rate, rel=1e-12)
    assert [each.model for each in found.candidates] == [each.model for each in best.candidates]


def test_all_depths_win_somewhere():
    assert len({len(drawn(random.Random(seed)).best().edges) for seed in range(12)}) >= 3


# -- what it reduces to -----------------------------------------------------------------------------------


def single(rate: float, hop: Hop) -> Hierarchy:
    """A device that drafts for the target."""
    models = candidate("draft"), candidate("target")
    return Hierarchy(models, {("device", "cloud"): hop}, agreements({("draft", "target"): rate}))


def with_length(hierarchy: Hierarchy, length: int) -> Chain:
    draft, target = hierarchy.candidates
    return chain_of(hierarchy, [Spec(target, draft, None, length, 0.0)])


@pytest.mark.parametrize("rate", [0.2, 0.6, 0.9])
def test_one_draft_without_look_ahead_is_plain_speculative_decoding(rate):
    hierarchy = single(rate, Hop(0.03, Ahead.NOTHING))
    draft, target = hierarchy.candidates
    for length in range(1, 17):
        seconds = length * draft.step_s(1) + 0.03 + target.step_s(length + 1)
        found = with_length(hierarchy, length)
        assert found.rate == pytest.approx(sum(reach((rate,) * length)) / seconds)
        assert found.positions == pytest.approx((length + 1) / sum(reach((rate,) * length)))


@pytest.mark.parametrize("rate", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("rtt_s", [0.004, 0.4])
def test_one_draft_with_look_ahead_is_the_law_of_a_device(rate, rtt_s):
    """Beyond that law the guess before the next block takes a pass, and a pass in vain ends late: nothing of that
    counts where the device has its next block by the verdict."""
    hierarchy = single(rate, Hop(rtt_s))
    draft, target = hierarchy.candidates
    rates = [1 / target.step_s(1)]  # by length
    for length in range(1, 17):
        drafting, verdict = length * draft.step_s(1), rtt_s + target.step_s(length + 1)
        hidden = rate ** (length + 1) * min(drafting, verdict)
        rates.append(sum(reach((rate,) * length)) / (drafting + verdict - hidden))
        found, in_time = with_length(hierarchy, length), (length + 1) * draft.step_s(1)
        if in_time <= rtt_s + target.step_s(length + 1):
            assert found.rate == pytest.approx(rates[length])
        else:
            assert 0.9 * rates[length] < found.rate < rates[length]
    assert hierarchy.best().rate == pytest.approx(max(rates))


def test_bad_agreement_leaves_the_target_alone():
    rates = dict.fromkeys(combinations(MODELS, 2), 0.02)
    found = Hierarchy(CANDIDATES, HOPS, agreements(rates)).best()
    assert (found.edges, found.positions, found.rate) == ([], 1.0, 1 / step(SECONDS["target"], 1))


def test_a_middle_model_that_says_what_the_target_says_joins():
    rates = {("draft", "middle"): 0.8, ("draft", "target"): 0.6, ("middle", "target"): 0.95}
    found = Hierarchy(CANDIDATES[1:], HOPS, agreements(rates)).best()
    assert [each.model for each in found.candidates] == ["target", "middle", "draft"]


# -- blocks -----------------------------------------------------------------------------------------------


def dice(
    draw: random.Random, chances: tuple[float, ...], length: int, bound: float, known: Dependence
) -> tuple[int, int, bool]:
    """Length, committed tokens and hit of one block, as a relay makes it."""
    mean = known.share * known.both + (1 - known.share) * known.other
    chance, stand, size = 1.0, 0, 0
    while size < length and (size == 0 or chance >= bound):
        each = known.both if draw.random() < known.share else known.other
        place = min(size, len(chances) - 1)
        stand += stand == size and draw.random() < min(1, each * chances[place] / mean)
        chance, size = chance * each, size + 1
    hit = stand == size and draw.random() < chances[min(size, len(chances) - 1)]
    return size, stand + 1, hit


@pytest.mark.parametrize("bound", [0.0, 0.4, 0.7])
def test_blocks_are_what_dice_say(bound):
    draw, known, chances = random.Random(3), Dependence(0.6, 0.85, 0.5), (0.6, 0.75, 0.8)
    found = blocks(Agreement((chances,)), 6, bound, known)
    thrown = [dice(draw, chances, 6, bound, known) for _ in range(40_000)]
    assert found.lengths.sum() == pytest.approx(1)
    assert found.tokens.sum() == pytest.approx(1)
    assert found.mean_positions == pytest.approx(fmean(size for size, _, _ in thrown) + 1, abs=0.03)
    assert found.mean_tokens == pytest.approx(fmean(tokens for _, tokens, _ in thrown), abs=0.03)
    assert found.hit == pytest.approx(fmean(hit for _, _, hit in thrown), abs=0.01)


def test_doubtful_blocks_leave_early_and_the_others_grow():
    agreement, known = Agreement.uniform(0.7), Dependence(0.6, 0.9, 0.4)
    whole, early = blocks(agreement, 8), blocks(agreement, 8, 0.4, known)
    alike = blocks(agreement, 8, 0.4)
    assert whole.lengths[8] == pytest.approx(1)
    assert alike.lengths[3] == pytest.approx(1)  # 0.7 ** 3 = 0.343
    assert np.count_nonzero(early.lengths) > 3
    assert early.mean_tokens / early.mean_positions > whole.mean_tokens / whole.mean_positions


def test_what_a_relay_knows_of_tokens_does_not_change_whole_blocks():
    agreement = Agreement(((0.5, 0.7),))
    known = Dependence(0.5, 0.8, 0.6)
    assert blocks(agreement, 4, 0.0, known).tokens == pytest.approx(blocks(agreement, 4).tokens)


# -- rounds -----------------------------------------------------------------------------------------------


def supply_by_dice(draw: random.Random, rounds: Rounds, wanted: int) -> float:
    """Seconds from a cold start until there are so many tokens."""
    sent, seconds, count, warm = rounds.blocks, 0.0, 0, False
    sizes = range(len(sent.tokens))
    while count < wanted:
        seconds += rounds.warm_s if warm else rounds.cold_s
        tokens = draw.choices(sizes, sent.tokens)[0]
        count += tokens
        warm = draw.random() < sent.hits[tokens] / sent.tokens[tokens]
    return seconds


@pytest.mark.parametrize("ahead", Ahead)
def test_a_supply_is_the_mean_of_rounds_until_there_is_enough(ahead):
    draw, rounds = random.Random(5), Rounds(blocks(Agreement.uniform(0.7), 3), 0.036, 0.015, 0.005, ahead)
    found = rounds.supplies(9)
    for wanted in (1, 4, 9):
        seconds = fmean(supply_by_dice(draw, rounds, wanted) for _ in range(20_000))
        assert found[wanted] == pytest.approx(seconds, rel=0.02)
    assert found[0] == 0
    assert found[9] > 9 * rounds.token_s  # rounds do not end where blocks do


def test_the_start_and_the_end_of_an_answer_cost_tokens():
    """Long answers have the rate of the long run. The target streams until it has the first block."""
    rates = {("draft", "middle"): 0.8, ("draft", "target"): 0.6, ("middle", "target"): 0.95}
    found = Hierarchy(CANDIDATES[1:], HOPS, agreements(rates)).best()
    assert found.below is not None
    short, long = found.answer_rate(20), found.answer_rate(5000)
    assert short < 0.95 * long
    assert long == pytest.approx(found.rate, rel=0.01)
    assert found.answer_rate(1) == pytest.approx(1 / step(SECONDS["target"], 1))
    alone = Chain(found.target, None)
    assert alone.answer_rate(7) == alone.rate


def test_a_level_whose_tokens_are_taken_back_computes_what_came_instead():
    """While it waits for the first block, if that takes long enough; once, however many tokens are wanted."""
    sent = blocks(Agreement.uniform(0.7), 2)
    quick = Rounds(sent, 0.01, 0.005, 0.05, Ahead.DRAFTS)
    assert quick.restarts(5) - quick.supplies(5) == pytest.approx([0, *[0.05 - 0.005 - 0.01] * 5])
    slow = replace(quick, supply_s=0.06)
    assert slow.restarts(5) == pytest.approx(slow.supplies(5))
