"""Planted bugs: each must be caught by the named test, else that test proves nothing."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import verify_server.kv.prefix
import verify_server.round.sequence
import verify_server.round.session
from opensled.core.messages import DraftBlock
from opensled.core.noise import gumbel, hash_bits
from opensled.core.protocol import Truth, common_prefix, cut
from scheduler.fcfs import Fcfs
from scheduler.plan import Slice
from tests import test_fcfs, test_kv, test_noise, test_prefix, test_protocol, test_session
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.offer import Offer
from verify_server.round.session import Session
from verify_server.rules.base import AcceptanceResult
from verify_server.rules.match import Match


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


def rebase_blindly(block, committed):
    return DraftBlock(len(committed), block.tokens[len(committed) - block.base :])


def rebase_in_place(block, committed):
    """Verifies the whole draft at the new position."""
    return DraftBlock(len(committed), block.tokens)


def extend_blindly(self, verdict):
    if verdict.base > len(self.tokens):
        return None
    news = verdict.tokens[len(self.tokens) - verdict.base :]
    self.tokens.extend(news)
    return news


def extend_twice(self, verdict):
    self.tokens.extend(verdict.tokens)
    return verdict.tokens


def cut_by_length_only(tokens, base, ends):
    return cut(tokens, base, replace(ends, eos_ids=frozenset(), stop_ids=frozenset()))


def cut_one_late(tokens, base, ends):
    return cut(tokens, base, replace(ends, last_length=ends.last_length + 1))


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


def take_without_removing(self, count, tenant=""):
    return self._unused[-count:]


def forget_waiting(self, known, now):
    self.sources.device.offer = None
    return False


tell = Session._tell


def tell_from_the_end(self, base, *answered):
    tell(self, max(base, len(self.sequence) - 1), *answered)


def verify_everything(self, limits, budget, text, beside):
    return self.block


slice_of = Fcfs._slice


def decide_mid_prompt(self, session, budget, now):
    piece = slice_of(self, session, budget, now)
    return piece and Slice(piece.session, piece.tokens, True)


def gumbel_without_position(key, position, ids):
    return gumbel(key, 0, ids)


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
        Match, "decide", accept_with(lambda n: max(0, n - 1)), test_session.test_tokens_per_round_match_the_law
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
        verify_server.round.sequence, "rebase", rebase_blindly,
        test_session.test_a_stale_draft_is_answered_with_the_truth_and_no_computation,
    ),
    "a late draft is verified at the wrong position": Mutant(
        verify_server.round.sequence, "rebase", rebase_in_place,
        test_session.test_a_draft_that_arrives_late_keeps_what_is_still_right,
    ),
    "a disagreement is spliced": Mutant(
        Truth, "extend", extend_blindly, test_protocol.test_a_disagreement_is_never_spliced
    ),
    "a repeated verdict is applied twice": Mutant(
        Truth, "extend", extend_twice, test_protocol.test_truth_takes_only_what_is_new
    ),
    "an end inside a draft is overlooked": Mutant(
        verify_server.round.sequence, "cut", cut_by_length_only, test_session.test_eos_inside_a_draft_ends_the_sequence
    ),
    "one token too many": Mutant(
        verify_server.round.sequence, "cut", cut_one_late,
        test_session.test_max_tokens_inside_a_draft_wastes_no_position, (3,),
    ),
    "KV of rejected tokens counts as computed": Mutant(
        Session, "commit", commit_without_rollback, test_session.test_tokens_per_round_match_the_law
    ),
    "accepted tokens are computed again": Mutant(
        Session, "commit", commit_recomputing_all, test_session.test_positions_computed_are_counted_once
    ),
    "rollback gives a live block back": Mutant(
        BlockTable, "truncate", truncate_one_block_too_many, test_kv.test_truncate_keeps_the_blocks_of_what_stays
    ),
    "two sessions get the same block": Mutant(
        BlockPool, "take", take_without_removing, test_kv.test_every_block_has_one_owner_or_is_free
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
        Offer, "cut", verify_everything,
        test_session.test_max_tokens_inside_a_draft_wastes_no_position, (2,)
    ),
    "a chunk in the middle of a prompt decides": Mutant(
        Fcfs, "_slice", decide_mid_prompt, test_fcfs.test_a_prompt_is_computed_in_chunks_beside_verification
    ),
    "noise is the same at every position": Mutant(
        test_noise, "gumbel", gumbel_without_position, test_noise.test_noise_depends_on_key_position_and_id_only
    ),
    "noise in float32": Mutant(
        test_noise, "gumbel", gumbel_in_float32, test_noise.test_noise_is_finite_and_gumbel_distributed
    ),
    "the nucleus misses its last token": Mutant(
        test_noise, "nucleus", lambda probs, p: max(1, int(np.sum(np.cumsum(probs) < p))),
        test_noise.test_nucleus_is_the_smallest_set_that_reaches_top_p,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name, monkeypatch):
    MUTANTS[name].must_be_caught(monkeypatch)


def test_there_are_enough_of_them():
    assert len(MUTANTS) >= 20
