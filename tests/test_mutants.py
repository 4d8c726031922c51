"""Planted bugs: each must be caught by the named test."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import verify_server.kv.prefix
import verify_server.round.sequence
import verify_server.round.session
from opensled.core.messages import DraftBlock, DraftToken, SparseDistribution
from opensled.core.noise import gumbel, hash_bits
from opensled.core.protocol import Truth, common_prefix, cut
from opensled.core.sampling import SparseSampler, softmax
from scheduler.fcfs import Fcfs
from scheduler.plan import Slice
from tests import test_fcfs, test_kv, test_noise, test_prefix, test_protocol, test_ratio, test_session
from verify_server.engine.torch import torch_scores as scores
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.offer import Offer
from verify_server.round.session import Session
from verify_server.rules import ratio
from verify_server.rules.base import AcceptanceResult, SessionScores
from verify_server.rules.match import Match
from verify_server.rules.ratio import Ratio


def accept_with(change):
    """Rule `match`, whose count of accepted tokens is then changed."""

    def decide(self, check, scores):
        own = yield scores.request(range(len(check.draft) + 1), 0)
        count = min(change(common_prefix(check.ids, own)), len(check.draft))
        return AcceptanceResult(count, own[count])

    return decide


def accept_any_match(self, check, scores):
    """Counts matches anywhere instead of the leading run."""
    own = yield scores.request(range(len(check.draft) + 1), 0)
    count = sum(a == b for a, b in zip(check.ids, own))
    return AcceptanceResult(count, own[count])


def extend_blindly(self, verdict):
    if verdict.base > len(self.tokens):
        return None
    news = verdict.tokens[len(self.tokens) - verdict.base :]
    self.tokens.extend(news)
    return news


def extend_twice(self, verdict):
    self.tokens.extend(verdict.tokens)
    return verdict.tokens


commit = Session.commit


def commit_without_rollback(self, planned, decision, now):
    count = commit(self, planned, decision, now)
    self.sequence.computed = planned.segment.start + len(planned.segment.tokens)
    return count


def commit_recomputing_all(self, planned, decision, now):
    """Lossless, but computes accepted tokens again."""
    count = commit(self, planned, decision, now)
    if planned.check is not None:
        self.sequence.computed = min(self.sequence.computed, planned.check.position)
    return count


def truncate_one_block_too_many(self, length):
    keep = length // self._pool.block_size
    self._pool.give_back(self.blocks[keep:])
    del self.blocks[keep:]


def truncate_anywhere(self, length):
    keep = self._pool.blocks_for(length)
    self._pool.give_back(self.blocks[keep:])
    del self.blocks[keep:]


def forget_waiting(self, known, now):
    self.sources.device.offer = None
    return False


tell = Session._tell


def tell_from_the_end(self, base, *answered):
    tell(self, max(base, len(self.sequence) - 1), *answered)


slice_of = Fcfs._slice


def decide_mid_prompt(self, session, budget, now):
    piece = slice_of(self, session, budget, now)
    return piece and Slice(piece.session, piece.tokens, True)


def gumbel_in_float32(key, position, ids):
    uniform = ((hash_bits(key, position, ids) >> np.uint64(12)).astype(np.float32) + 0.5) * np.float32(2**-52)
    return -np.log(-np.log(uniform))


@dataclass(frozen=True)
class Mutant:
    owner: Any
    name: str
    bug: Any
    caught_by: Any
    arguments: tuple = ()

    def must_be_caught(self, monkeypatch) -> None:
        self.caught_by(*self.arguments)  # sound without the bug
        monkeypatch.setattr(self.owner, self.name, self.bug)
        # Nothing else: a bug that crashes proves nothing
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            self.caught_by(*self.arguments)


MUTANTS = {
    "one accepted token is thrown away": Mutant(
        Match, "decide", accept_with(lambda n: max(0, n - 1)),
        test_session.test_a_right_draft_commits_all_of_it_and_a_bonus
    ),
    "one wrong token is accepted": Mutant(
        Match, "decide", accept_with(lambda n: n + 1),
        test_session.test_a_wrong_token_is_recovered_in_the_same_round, (1,),
    ),
    "nothing is ever accepted": Mutant(
        Match, "decide", accept_with(lambda n: 0), test_session.test_a_right_draft_commits_all_of_it_and_a_bonus
    ),
    "matches after a mismatch count": Mutant(
        Match, "decide", accept_any_match, test_session.test_a_match_after_a_mismatch_does_not_stand
    ),
    "a stale draft is not recognised": Mutant(
        verify_server.round.sequence, "rebase",
        lambda block, committed: DraftBlock(len(committed), block.tokens[len(committed) - block.base :]),
        test_session.test_a_stale_draft_is_answered_with_the_truth_and_no_computation,
    ),
    "a late draft is verified at the wrong position": Mutant(
        verify_server.round.sequence, "rebase", lambda block, committed: DraftBlock(len(committed), block.tokens),
        test_session.test_a_draft_that_arrives_late_keeps_what_is_still_right,
    ),
    "a disagreement is spliced": Mutant(
        Truth, "extend", extend_blindly, test_protocol.test_a_disagreement_is_never_spliced
    ),
    "a repeated verdict is applied twice": Mutant(
        Truth, "extend", extend_twice, test_protocol.test_truth_takes_only_what_is_new
    ),
    "an end inside a draft is overlooked": Mutant(
        verify_server.round.sequence, "cut",
        lambda tokens, base, ends: cut(tokens, base, replace(ends, eos_ids=frozenset(), stop_ids=frozenset())),
        test_session.test_eos_inside_a_draft_ends_the_sequence
    ),
    "one token too many": Mutant(
        verify_server.round.sequence, "cut",
        lambda tokens, base, ends: cut(tokens, base, replace(ends, last_length=ends.last_length + 1)),
        test_session.test_max_tokens_inside_a_draft_wastes_no_position, (3,),
    ),
    "KV of rejected tokens counts as computed": Mutant(
        Session, "commit", commit_without_rollback,
        test_session.test_a_wrong_token_is_recovered_in_the_same_round, (1,),
    ),
    "accepted tokens are computed again": Mutant(
        Session, "commit", commit_recomputing_all, test_session.test_positions_computed_are_counted_once
    ),
    "rollback gives a live block back": Mutant(
        BlockTable, "truncate", truncate_one_block_too_many, test_kv.test_truncate_keeps_the_blocks_of_what_stays
    ),
    "two sessions get the same block": Mutant(
        BlockPool, "take",
        lambda self, count, tenant="": self._unused[-count:], test_kv.test_every_block_has_one_owner_or_is_free
    ),
    "a text that others began takes over its last token too": Mutant(
        verify_server.kv.prefix, "reusable_blocks", lambda length, size: length // size,
        test_prefix.test_texts_have_as_many_keys_in_common_as_they_have_full_blocks,
    ),
    "a session writes in blocks that others read": Mutant(
        BlockTable, "frozen", property(lambda table: 0), test_kv.test_blocks_that_others_may_read_are_not_written
    ),
    "rollback of a shared block is possible": Mutant(
        BlockTable, "truncate", truncate_anywhere, test_kv.test_what_is_committed_is_never_rolled_back
    ),
    "a draft that came during a step is lost": Mutant(
        Session, "_rebase_waiting", forget_waiting,
        test_session.test_a_draft_during_a_step_meets_the_new_truth_when_the_step_commits,
    ),
    "a verdict tells only its last token": Mutant(
        Session, "_tell", tell_from_the_end, test_session.test_a_right_draft_commits_all_of_it_and_a_bonus
    ),
    "drafts beyond the end are computed": Mutant(
        Offer, "cut", lambda self, limits, budget, text, beside: self.block,
        test_session.test_max_tokens_inside_a_draft_wastes_no_position, (2,)
    ),
    "a chunk in the middle of a prompt decides": Mutant(
        Fcfs, "_slice", decide_mid_prompt, test_fcfs.test_a_prompt_is_computed_in_chunks_beside_verification
    ),
    "noise is the same at every position": Mutant(
        test_noise, "gumbel",
        lambda key, position, ids: gumbel(key, 0, ids), test_noise.test_noise_depends_on_key_position_and_id_only
    ),
    "noise in float32": Mutant(
        test_noise, "gumbel", gumbel_in_float32, test_noise.test_noise_is_finite_and_gumbel_distributed
    ),
    "the nucleus misses its last token": Mutant(
        test_noise, "nucleus", lambda probs, p: max(1, int(np.sum(np.cumsum(probs) < p))),
        test_noise.test_nucleus_is_the_smallest_set_that_reaches_top_p,
    ),
}  # fmt: skip


# -- rule `ratio` and its sampler -------------------------------------------------------------------------------


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


def check(name="plain", dtype=np.float64):
    """The enumeration under the parameters of that name."""
    test_ratio.test_every_way_a_round_can_go_adds_up_to_the_target(test_ratio.PARAMS[name], dtype)


def check_counts(seed=1):
    test_ratio.test_what_is_drawn_has_the_joint_law_of_the_target_at_every_position(seed)


RATIO_MUTANTS = {
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
    "tested against the row before": Mutant(
        SessionScores, "probs_of", lambda self, rows, ids:
            [own_probs_of(self, range(max(0, row - 1), max(1, row)), [id])[0] for row, id in zip(rows, ids)],
        check
    ),
    "the bonus comes from the row before": Mutant(
        SessionScores, "request",
        lambda self, rows, *rest: own_request(self, range(max(0, rows.start - 1), max(1, rows.stop - 1)), *rest), check
    ),
    "recovered from the next position's row": Mutant(
        SessionScores, "sample_residual",
        lambda self, row, draft_probs, key: own_residual(self, row + 1, draft_probs, key), check
    ),
    "recovered from the target, not the residual": Mutant(scores, "residual", lambda target, draft: target, check),
    "the residual takes absolute differences": Mutant(
        scores, "residual", residual_of_absolute_differences, check
    ),
    "the residual stands the wrong way": Mutant(scores, "residual", residual_the_wrong_way, check),
    "the residual forgets a candidate": Mutant(
        scores, "residual", residual_forgets_the_last_candidate, check
    ),
    "the test ignores the temperature": Mutant(
        TorchScores, "probs_of",
        lambda self, rows, ids, params, masks=None, emitted=None: probs_of(self, rows, ids, PLAIN, masks),
        check, ("cold",)
    ),
    "the residual ignores top_k": Mutant(
        TorchScores, "sample_residual",
        lambda self, row, draft_probs, params, key, position, mask=None, emitted=None:
            sample_residual(self, row, draft_probs, PLAIN, key, position, mask),
        test_ratio.test_the_residual_obeys_top_k
    ),
    "one coin for all positions": Mutant(ratio, "uniform", lambda key, position: UNIFORM(key, 0), check_counts),
    "test, recovery and proposal share one stream": Mutant(
        Ratio, "_stream", lambda self, name, key: key, check_counts
    ),
    "test and recovery share one stream": Mutant(
        Ratio, "_stream", lambda self, name, key: bytes(reversed(key)), check_counts, (12,)
    ),
    "the sampler draws the likeliest": Mutant(SparseSampler, "_draw", draws_the_likeliest, check_counts),
    "the sampler names another temperature": Mutant(
        SparseSampler, "_draw", names_another_temperature,
        test_ratio.test_a_sampler_names_exactly_what_it_draws_from,
    ),
    "blocks end before unlikely tokens": Mutant(
        SparseSampler, "_draw", confidence_of_the_drawn, test_ratio.test_a_stop_rule_by_confidence_keeps_the_law
    ),
}  # fmt: skip


OF_RATIO = [pytest.param(name, marks=pytest.mark.long) for name in RATIO_MUTANTS]


@pytest.mark.parametrize("name", [*MUTANTS, *OF_RATIO])
def test_a_planted_bug_is_caught(name, monkeypatch):
    (MUTANTS | RATIO_MUTANTS)[name].must_be_caught(monkeypatch)


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 20 and len(RATIO_MUTANTS) >= 10
