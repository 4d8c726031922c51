"""What every `Scores` must keep to, against the design's definition, one id at a time.

class TestMine(ScoresContract):
    @staticmethod
    def scores(logits: np.ndarray) -> Scores:
        return MyScores(logits)
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from opensled.core import noise
from opensled.core.errors import NonFiniteLogits
from opensled.core.messages import SamplingParams, SparseDistribution
from verify_server.engine.base import SampleRequest, Scores
from verify_server.engine.torch.torch_scores import TorchScores

GREEDY = SamplingParams(temperature=0)
KEY = noise.noise_key(7)
VOCABULARY = 97
WARM = SamplingParams(temperature=0.8)
BIASED = SamplingParams(temperature=0.8, logit_bias=((3, 2.5), (11, -100.0), (96, 1.0)))
SHAPES = (GREEDY, WARM, BIASED, SamplingParams(temperature=1.3, top_k=7), SamplingParams(top_p=0.6))


def ranked(logits: np.ndarray) -> list[int]:
    return sorted(range(len(logits)), key=lambda v: (-logits[v], v))


def oracle_probs(
    logits: np.ndarray, params: SamplingParams, mask: Sequence[int] | None = None
) -> dict[int, float]:
    """Id -> probability by the words of the design; ids that cannot follow are not in it."""
    logits = logits.astype(float)
    for id, bias in params.logit_bias:
        logits[id] += bias
    order = [v for v in ranked(logits) if mask is None or v in mask]
    if params.temperature == 0:
        return {order[0]: 1.0}
    if params.top_k:
        order = order[: params.top_k]
    scaled = {v: logits[v] / params.temperature for v in order}
    weights = np.exp([scaled[v] - scaled[order[0]] for v in order])
    kept, mass = [], 0.0
    for v, prob in zip(order, weights / weights.sum()):
        if kept and mass >= params.top_p:
            break
        kept.append(v)
        mass += prob
    share = np.exp([scaled[v] - scaled[order[0]] for v in kept])
    return dict(zip(kept, share / share.sum()))


def oracle(
    logits: np.ndarray, params: SamplingParams, position: int, mask: Sequence[int] | None = None
) -> int:
    """The token by the words of the design."""
    allowed = oracle_probs(logits, params, mask)
    if params.temperature == 0:
        return next(iter(allowed))
    biased = logits.astype(float)
    for id, bias in params.logit_bias:
        biased[id] += bias
    noisy = {
        v: biased[v] / params.temperature + noise.gumbel(KEY, position, np.array([v]))[0] for v in allowed
    }
    return min(allowed, key=lambda v: (-noisy[v], v))


def sampling_cases() -> Iterator[SamplingParams]:
    for temperature in (0.0, 0.3, 1.0, 2.5):
        for top_k in (0, 1, 3, 40, 1000):
            for top_p in (1.0, 0.91, 0.37, 1e-9):
                yield SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)


def packed(ids: Sequence[int], width: int = VOCABULARY) -> bytes:
    """A mask that lets just `ids` pass."""
    bits = np.zeros(width, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def rows_of_all_kinds() -> np.ndarray:
    """float32 [18, VOCABULARY]: smooth rows, rows full of ties, rows full of -inf."""
    chance = np.random.default_rng(0)
    smooth = chance.normal(size=(6, VOCABULARY)) * 2
    tied = chance.integers(-1, 2, size=(6, VOCABULARY)).astype(float)
    masked = np.where(chance.random((6, VOCABULARY)) < 0.7, -np.inf, smooth)
    return np.concatenate([smooth, tied, masked]).astype(np.float32)


class ScoresContract:
    @staticmethod
    def scores(logits: np.ndarray) -> Scores:
        raise NotImplementedError("a contract test class says whose scores it tests")

    @pytest.mark.parametrize(
        "params", list(sampling_cases()), ids=lambda p: f"T{p.temperature}-k{p.top_k}-p{p.top_p}"
    )
    def test_sampling_equals_the_definition(self, params):
        logits = rows_of_all_kinds()
        drawn = self.scores(logits).sample_one(SampleRequest(range(18), params, KEY, 11))
        assert drawn == [oracle(row, params, 11 + i) for i, row in enumerate(logits)]

    @pytest.mark.parametrize("params", [GREEDY, WARM, BIASED, SamplingParams(top_k=5, top_p=0.8)], ids=str)
    def test_masks_and_biases_come_before_everything_else(self, params):
        chance = np.random.default_rng(3)
        logits = rows_of_all_kinds()[:12]
        allowed = [sorted(chance.choice(VOCABULARY, 9, replace=False).tolist()) for _ in logits]
        masks = [packed(ids) for ids in allowed]
        drawn = self.scores(logits).sample_one(SampleRequest(range(12), params, KEY, 4, masks))
        assert drawn == [oracle(row, params, 4 + i, allowed[i]) for i, row in enumerate(logits)]

    @pytest.mark.parametrize("spread", [0.1, 6.0])
    def test_a_nucleus_may_be_wider_than_the_first_guess(self, spread):
        logits = np.random.default_rng(1).normal(size=(4, 3000)) * spread
        params = SamplingParams(top_p=0.9)
        drawn = self.scores(logits).sample_one(SampleRequest(range(4), params, KEY, 0))
        assert drawn == [oracle(row, params, i) for i, row in enumerate(logits)]

    def test_ties_go_to_the_lowest_id(self):
        logits = np.zeros((3, 5000), np.float32)
        logits[1, [17, 4000]] = 1.0
        logits[2, :] = -np.inf
        logits[2, [4998, 4999]] = -3.0
        assert self.scores(logits).sample_one(SampleRequest([0, 1, 2], GREEDY, KEY, 0)) == [0, 17, 4998]

    @pytest.mark.parametrize("params", SHAPES, ids=str)
    def test_probabilities_are_the_definitions(self, params):
        logits = rows_of_all_kinds()
        scores = self.scores(logits)
        for mask in (None, list(range(0, VOCABULARY, 2))):
            usable = [row for row in range(18) if mask is None or np.isfinite(logits[row, mask]).any()]
            masks = None if mask is None else [packed(mask)] * len(usable)
            ids = [(7 * row) % VOCABULARY for row in usable]
            found = scores.probs_of(usable, ids, params, masks)
            expected = [oracle_probs(logits[row], params, mask).get(id, 0.0) for row, id in zip(usable, ids)]
            assert found == pytest.approx(expected, abs=1e-12)

    def test_the_residual_is_sampled(self):
        """A draft that holds just what the target holds of two ids leaves the others, in the target's proportions."""
        logits = np.random.default_rng(2).normal(size=(1, 12)).astype(np.float32)
        target = oracle_probs(logits[0], WARM)
        source = SparseDistribution((2, 5), (0.5, 0.5))
        rest = np.array([target[v] - 0.5 * (v in (2, 5)) for v in range(12)]).clip(0)
        scores = self.scores(logits)
        drawn = [scores.sample_residual(0, source, WARM, KEY, position) for position in range(3000)]
        frequency = np.bincount(drawn, minlength=12) / len(drawn)
        assert np.abs(frequency - rest / rest.sum()).max() < 0.03
        assert scores.sample_residual(0, source, WARM, KEY, 1, packed([2, 5, 7], 12)) in (2, 5, 7)

    def test_a_residual_of_nothing_is_the_target(self):
        logits = np.array([[0.0, np.log(3.0)]])
        params = SamplingParams(temperature=1.0)
        scores = self.scores(logits)
        drawn = {
            scores.sample_residual(0, SparseDistribution((0, 1), (0.25, 0.75)), params, KEY, position)
            for position in range(60)
        }
        assert drawn <= {0, 1}

    def test_logprobs_are_the_raw_ones(self):
        logits = rows_of_all_kinds()
        rows, ids = [0, 7, 3], [5, 90, 0]
        for entry, row, id in zip(self.scores(logits).logprobs(rows, ids, 4), rows, ids):
            plain = logits[row].astype(float)
            expected = plain - plain.max() - np.log(np.exp(plain - plain.max()).sum())
            assert [token for token, _ in entry] == [id, *ranked(plain)[:4]]
            assert [value for _, value in entry] == pytest.approx([expected[token] for token, _ in entry])
        assert [len(entry) for entry in self.scores(logits).logprobs(rows, ids, 0)] == [1, 1, 1]

    def test_a_rank_counts_the_ids_that_are_at_least_as_likely(self):
        logits = rows_of_all_kinds()
        logits[5, :4] = logits[5].max() + 1  # ties
        rows, ids = [0, 5, 5, 17], [5, 0, 3, 96]
        expected = [sum(other >= logits[row][id] for other in logits[row]) for row, id in zip(rows, ids)]
        assert self.scores(logits).ranks(rows, ids) == expected and expected[1:3] == [4, 4]
        assert self.scores(logits).ranks([], []) == []

    def test_entropy_is_that_of_the_raw_distribution(self):
        logits = rows_of_all_kinds()
        logits[4] = np.where(np.arange(VOCABULARY) == 3, 0.0, -np.inf)  # certain
        plain = logits.astype(float)
        probs = np.exp(plain - plain.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        rows = [17, 0, 4, 9]
        expected = [-sum(p * np.log(p) for p in probs[row] if p > 0) for row in rows]
        found = self.scores(logits).entropy(rows)
        assert found == pytest.approx(expected, abs=1e-12) and found[2] == 0
        assert self.scores(np.zeros((1, 5000), np.float32)).entropy([0]) == pytest.approx([np.log(5000)])
        assert self.scores(logits).entropy([]) == []

    @pytest.mark.parametrize("count", [1, 3, VOCABULARY, 1000])
    def test_top_ranks_the_raw_distribution(self, count):
        logits = rows_of_all_kinds()[:12]
        plain = logits.astype(float)
        expected = plain - plain.max(axis=1, keepdims=True)
        expected -= np.log(np.exp(expected).sum(axis=1, keepdims=True))
        for row, entry in enumerate(self.scores(logits).top(range(12), count)):
            assert [id for id, _ in entry] == ranked(plain[row])[:count]
            assert [value for _, value in entry] == pytest.approx([expected[row, id] for id, _ in entry])

    def test_one_call_answers_requests_of_all_kinds(self):
        """As if each of them came alone, whatever the others are."""
        logits = np.concatenate([rows_of_all_kinds()] * 2)
        mask = packed(range(0, VOCABULARY, 3))
        requests = [
            SampleRequest(
                [index], params, bytes([index]) * 16, 100 * index, [mask] if index % 5 == 0 else None
            )
            for index, params in enumerate([*SHAPES, *sampling_cases()][: len(logits)])
        ]
        together = self.scores(logits).sample(requests)
        alone = [self.scores(logits).sample([request])[0] for request in requests]
        for one, other in zip(together, alone, strict=True):
            assert one == other or (isinstance(one, NonFiniteLogits) and isinstance(other, NonFiniteLogits))
        assert sum(isinstance(answer, list) for answer in together) > 30

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    @pytest.mark.parametrize("params", [GREEDY, SamplingParams(), BIASED], ids=str)
    def test_only_the_bad_row_is_refused(self, bad, params):
        logits = np.random.default_rng(4).normal(size=(4, VOCABULARY)).astype(np.float32)
        logits[1, 3] = bad
        logits[2, :] = -np.inf
        scores = self.scores(logits)
        for row in (1, 2):
            with pytest.raises(NonFiniteLogits):
                scores.sample_one(SampleRequest([row], params, KEY, 0))
            with pytest.raises(NonFiniteLogits):
                scores.probs_of([row], [0], params)
            with pytest.raises(NonFiniteLogits):
                scores.sample_residual(row, SparseDistribution((0,), (1.0,)), params, KEY, 0)
            for asked in (scores.entropy, lambda rows: scores.top(rows, 2)):
                with pytest.raises(NonFiniteLogits):
                    asked([row])
        assert (
            len(
                scores.sample_one(SampleRequest([0], params, KEY, 0))
                + scores.sample_one(SampleRequest([3], params, KEY, 0))
            )
            == 2
        )

    def test_a_mask_that_leaves_nothing_finite_is_refused(self):
        logits = rows_of_all_kinds()[12:13]
        hidden = np.flatnonzero(np.isneginf(logits[0]))[:5].tolist()
        with pytest.raises(NonFiniteLogits):
            self.scores(logits).sample_one(SampleRequest([0], WARM, KEY, 0, [packed(hidden)]))

    def test_no_rows_are_no_error(self):
        scores = self.scores(np.zeros((0, VOCABULARY), np.float32))
        assert scores.sample_one(SampleRequest([], GREEDY, KEY, 0)) == [] and scores.logprobs([], [], 2) == []


class Grouped(TorchScores):
    """As on a GPU: whole groups of rows at once."""

    def sample(self, requests):
        return self.sample_groups(requests)
