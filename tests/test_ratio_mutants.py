"""Planted bugs in rule `ratio` and its sampler: each must be caught by the named test of tests/test_ratio.py."""

import numpy as np
import pytest

from opensled.core.messages import DraftToken, SparseDistribution
from opensled.core.sampling import SparseSampler, softmax
from tests import test_ratio
from tests.test_mutants import Mutant
from verify_server.engine.torch import torch_scores as scores
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.rules import ratio
from verify_server.rules.base import SessionScores
from verify_server.rules.ratio import Ratio

PLAIN = test_ratio.PARAMS["plain"]


def accept_after_a_rejection(self, check, scores):
    """Counts every token that passes its own test."""
    probs = scores.probs_of(range(len(check.draft)), check.ids)
    key = self._stream("accept", check.key)
    fallen = [
        ratio.uniform(key, check.position + index) >= ratio.acceptance_prob(prob, ratio.draft_prob(token))
        for index, (token, prob) in enumerate(zip(check.draft, probs))
    ]
    return fallen.count(False)


probs_of, sample_residual = TorchScores.probs_of, TorchScores.sample_residual
own_probs_of, own_request = SessionScores.probs_of, SessionScores.request
own_residual = SessionScores.sample_residual
drawn = SparseSampler._draw


def with_the_row_before(self, rows, ids):
    return own_probs_of(self, [max(0, row - 1) for row in rows], ids)


def bonus_of_the_row_before(self, rows, depth, key=None):
    return own_request(self, range(max(0, rows.start - 1), max(1, rows.stop - 1)), depth, key)


def recover_at_the_next_position(self, row, draft_probs, key):
    return own_residual(self, row + 1, draft_probs, key)


def uniform_without_position(key, position):
    return UNIFORM(key, 0)


UNIFORM = ratio.uniform


def residual_of_absolute_differences(target, draft_probs):
    rest = (target - dense(target, draft_probs)).abs()
    return rest / rest.sum()


def residual_the_wrong_way(target, draft_probs):
    rest = (dense(target, draft_probs) - target).clamp(min=0)
    return rest / rest.sum()


def residual_forgets_the_last_candidate(target, draft_probs):
    short = SparseDistribution(draft_probs.ids[:-1], draft_probs.probs[:-1])
    rest = (target - dense(target, short)).clamp(min=0)
    return rest / rest.sum()


def dense(target, draft_probs):
    values = target.new_tensor(draft_probs.probs, dtype=target.dtype)
    return target.new_zeros(target.shape).index_add(0, target.new_tensor(draft_probs.ids).long(), values)


def names_another_temperature(self, ids, scores, position):
    token = drawn(self, ids, scores, position)
    probs = softmax(scores).astype(np.float32)
    return DraftToken(
        token.id, token.confidence, SparseDistribution(tuple(ids.tolist()), tuple(probs.tolist()))
    )


def confidence_of_the_drawn(self, ids, scores, position):
    token = drawn(self, ids, scores, position)
    return DraftToken(
        token.id, token.drawn_from.probs[token.drawn_from.ids.index(token.id)], token.drawn_from
    )


def draws_the_likeliest(self, ids, scores, position):
    token = drawn(self, ids, scores, position)
    return DraftToken(int(ids[0]), token.confidence, token.drawn_from)


def at_temperature_one(self, rows, ids, params, masks=None, emitted=None):
    return probs_of(self, rows, ids, PLAIN, masks)


def residual_without_top_k(self, row, draft_probs, params, key, position, mask=None, emitted=None):
    return sample_residual(self, row, draft_probs, PLAIN, key, position, mask)


def check(name="plain", dtype=np.float64):
    """The enumeration under the parameters of that name."""
    test_ratio.test_every_way_a_round_can_go_adds_up_to_the_target(test_ratio.PARAMS[name], dtype)


def check_counts(seed=1):
    test_ratio.test_what_is_drawn_has_the_joint_law_of_the_target_at_every_position(seed)


MUTANTS = {
    "every draft token is accepted": Mutant(ratio, "acceptance_prob", lambda target, draft: 1.0, check),
    "no draft token is accepted, but recovered": Mutant(ratio, "acceptance_prob", lambda target, draft: 0.0, check),
    "the ratio stands upside down": Mutant(
        ratio, "acceptance_prob", lambda target, draft: min(1.0, draft / max(target, 1e-9)), check
    ),
    "accepted with the target's probability alone": Mutant(
        ratio, "acceptance_prob", lambda target, draft: target, check
    ),
    "the draft's probability is that of its first candidate": Mutant(
        ratio, "draft_prob", lambda token: token.drawn_from.probs[0], check
    ),
    "tokens after a rejection count": Mutant(Ratio, "_num_accepted", accept_after_a_rejection, check),
    "tested against the row before": Mutant(SessionScores, "probs_of", with_the_row_before, check),
    "the bonus comes from the row before": Mutant(SessionScores, "request", bonus_of_the_row_before, check),
    "recovered from the next position's row": Mutant(
        SessionScores, "sample_residual", recover_at_the_next_position, check
    ),
    "recovered from the target, not the residual": Mutant(scores, "residual", lambda target, draft: target, check),
    "the residual takes absolute differences": Mutant(
        scores, "residual", residual_of_absolute_differences, check
    ),
    "the residual stands the wrong way": Mutant(scores, "residual", residual_the_wrong_way, check),
    "the residual forgets a candidate": Mutant(
        scores, "residual", residual_forgets_the_last_candidate, check
    ),
    "the test ignores the temperature": Mutant(TorchScores, "probs_of", at_temperature_one, check, ("cold",)),
    "the residual ignores top_k": Mutant(
        TorchScores, "sample_residual", residual_without_top_k, test_ratio.test_the_residual_obeys_top_k
    ),
    "one coin for all positions": Mutant(ratio, "uniform", uniform_without_position, check_counts),
    "test, recovery and proposal share one stream": Mutant(
        Ratio, "_stream", lambda self, name, key: key, check_counts
    ),
    "test and recovery share one stream": Mutant(
        Ratio, "_stream", lambda self, name, key: bytes(reversed(key)), check_counts, (12,)
    ),
    "the sampler draws the likeliest": Mutant(SparseSampler, "_drawn", draws_the_likeliest, check_counts),
    "the sampler names another temperature": Mutant(
        SparseSampler, "_drawn", names_another_temperature,
        test_ratio.test_a_sampler_names_exactly_what_it_draws_from,
    ),
    "blocks end before unlikely tokens": Mutant(
        SparseSampler, "_drawn", confidence_of_the_drawn, test_ratio.test_a_stop_rule_by_confidence_keeps_the_law
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name, monkeypatch):
    MUTANTS[name].must_be_caught(monkeypatch)


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 10
