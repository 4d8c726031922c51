"""One session, step by step and without a loop: rounds are exact here, and no peer's fault costs another."""

from dataclasses import replace

import pytest

from opensled.core.errors import EngineError, FutureBase, InvalidRequest, NonFiniteLogits, Unsupported
from opensled.core.messages import Open, SamplingParams, Verdict
from scheduler.plan import Slice
from tests.fakes import EOS, POISON, VOCAB, FakeEngine, continuation, next_token
from tests.sessions import PROMPT, Bench
from tests.system import read_now, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.step import run_step
from verify_server.rules.base import AcceptanceResult, AcceptanceRule


def test_plain_decoding_is_a_step_without_a_draft():
    bench = Bench()
    expected = bench.right(3)
    verdicts = [bench.step() for _ in range(3)]
    assert [token for verdict in verdicts for token in verdict.tokens] == expected
    assert [(v.base, v.num_accepted, v.answers) for v in verdicts] == [(5, 0, 0), (6, 0, 0), (7, 0, 0)]


def test_a_right_draft_commits_all_of_it_and_a_bonus():
    bench = Bench()
    expected = bench.right(5)
    bench.draft(*expected[:4])
    assert bench.step() == Verdict(5, tuple(expected), 4, 1)
    assert bench.session.sequence.computed == len(bench.session.sequence.tokens) - 1


@pytest.mark.parametrize("right", range(4))
def test_a_wrong_token_is_recovered_in_the_same_round(right):
    bench = Bench()
    expected = bench.right(right + 1)
    wrong = 1 + expected[right] % 40
    bench.draft(*expected[:right], wrong, 2, 2)
    assert bench.step() == Verdict(5, tuple(expected), right, 1)
    assert bench.session.sequence.computed == 5 + right


def test_a_match_after_a_mismatch_does_not_stand():
    bench = Bench()
    expected = bench.right(1)
    wrong = 1 + expected[0] % 40
    bench.draft(wrong, next_token([*PROMPT, wrong]))
    assert bench.step() == Verdict(5, tuple(expected), 0, 1)


def test_positions_computed_are_counted_once():
    """A round of k drafts costs k + 1 positions, and what was accepted is never computed again."""
    bench = Bench()
    bench.step()
    assert bench.engine.computed == 5
    bench.draft(*bench.right(4))
    bench.step()
    assert bench.engine.computed == 5 + 5
    bench.draft(9, 9, 9)
    bench.step()
    assert bench.engine.computed == 10 + 4


def test_a_draft_that_arrives_late_keeps_what_is_still_right():
    bench = Bench()
    expected = bench.right(6)
    bench.step()
    bench.draft(*expected[:5], base=5)
    assert bench.step() == Verdict(5, tuple(expected), 5, 1)


def test_a_stale_draft_is_answered_with_the_truth_and_no_computation():
    bench = Bench()
    expected = bench.right(1)
    bench.step()
    computed = bench.engine.computed
    bench.draft(1 + expected[0] % 40, 2, base=5)
    assert bench.verdict() == Verdict(5, tuple(expected), 0, 1)
    assert bench.engine.computed == computed and bench.session.sources.device.offer is None


def test_a_draft_during_a_step_meets_the_new_truth_when_the_step_commits():
    bench = Bench()
    expected = bench.right(5)
    planned = bench.session.plan(Slice(1, 5, True), 0.0)
    bench.draft(*expected[:4], base=5)
    bench.session.commit(planned, run_step(bench.engine, [planned])[0], now=1.0)
    assert bench.verdict() == Verdict(5, tuple(expected[:1]), 0, 0)
    assert bench.session.view(0.0).device.tokens == 3
    assert bench.step() == Verdict(5, tuple(expected), 4, 1)


def test_a_later_draft_replaces_an_unplanned_one():
    bench = Bench()
    expected = bench.right(3)
    bench.draft(9, 9)
    bench.draft(*expected[:2])
    assert bench.step() == Verdict(5, tuple(expected), 2, 2)


def test_a_stale_draft_replaces_an_unplanned_one_as_well():
    bench = Bench()
    [first] = bench.right(1)
    bench.step()
    bench.draft(*bench.right(2))
    bench.draft(1 + first % 40, base=5)
    assert bench.verdict() == Verdict(5, (first,), 0, 2)
    assert bench.session.sources.device.offer is None, "its answer answers the one before it as well"


def test_a_repeated_or_overtaken_frame_changes_nothing():
    bench = Bench()
    bench.draft(7)
    bench.draft()
    assert bench.session.sources.device.turn.server_drives
    bench.counter = 0
    bench.draft(7)
    assert bench.session.sources.device.turn.server_drives and bench.session.sources.device.offer is None


def test_who_drives():
    bench = Bench()
    assert bench.session.view(0.0).server_drives
    bench.draft(*bench.right(2))
    assert not bench.session.view(0.0).server_drives
    bench.step()
    assert not bench.session.view(0.0).server_drives
    bench.draft()
    assert bench.session.view(0.0).server_drives


def test_an_end_in_the_middle_of_a_draft_gets_no_bonus():
    script = continuation(PROMPT, 6)
    bench = Bench(stop_ids=(script[2],))
    bench.draft(*script[:5])
    verdict = bench.step()
    assert (verdict.tokens, verdict.finish_reason) == (tuple(script[:3]), "stop")


def test_eos_inside_a_draft_ends_the_sequence():
    bench = Bench(target=lambda context: EOS if len(context) == 7 else next_token(context))
    first, second = bench.right(2)
    bench.draft(first, second, EOS, 4)
    verdict = bench.step()
    assert (verdict.tokens, verdict.finish_reason) == ((first, second, EOS), "eos")


@pytest.mark.parametrize("max_tokens", range(1, 7))
def test_max_tokens_inside_a_draft_wastes_no_position(max_tokens):
    bench = Bench(max_tokens=max_tokens)
    expected = bench.right(6)
    bench.draft(*expected[:5])
    verdict = bench.step()
    assert verdict.tokens == tuple(expected[:max_tokens])
    assert verdict.finish_reason == "length" and bench.engine.computed == 5 + max_tokens - 1


def test_after_the_end_every_draft_is_answered_with_the_end():
    bench = Bench(max_tokens=1)
    token = bench.step().tokens
    bench.draft(8, 8, base=5)
    assert bench.verdict() == Verdict(5, token, 0, 1, "length")


def test_a_new_reader_is_told_what_he_misses_and_the_old_stream_ends():
    bench = Bench()
    old = bench.session.outbox
    bench.step()
    bench.session.attach(5)
    assert bench.verdict().tokens == tuple(bench.session.sequence.tokens[5:])
    assert read_now(old) is None


def test_kv_lost_under_pressure_is_recomputed_with_the_same_text():
    bench = Bench()
    expected = bench.right(8)
    bench.draft(*expected[:3])
    bench.step()
    bench.session.forget_kv()
    assert bench.pool.num_free == 32
    bench.step(tokens=4, decide=False)
    bench.draft(*expected[4:7])
    assert bench.step().tokens == tuple(expected[4:8])


@pytest.mark.parametrize(
    ("ids", "base", "error"),
    [
        ((1,), 6, FutureBase),
        ((1,), 4, InvalidRequest),
        ((VOCAB,), 5, InvalidRequest),
        ((1,) * 9, 5, InvalidRequest),
    ],
)
def test_a_bad_draft_is_a_typed_error_and_changes_nothing(ids, base, error):
    bench = Bench()
    with pytest.raises(error):
        bench.draft(*ids, base=base)
    assert bench.session.sources.device.offer is None and bench.session.sequence.tokens == PROMPT


def test_a_non_finite_row_fails_its_own_session_alone():
    sick, well = Bench(prompt=[1, POISON]), Bench()
    engine = FakeEngine()
    well.session.sequence.memory = BlockTable(pool := BlockPool(64, 4))
    sick.session.sequence.memory = BlockTable(pool)
    work = [
        bench.session.plan(Slice(1, len(bench.session.sequence.tokens), True), 0.0) for bench in (sick, well)
    ]
    failure, decision = run_step(engine, work)
    assert isinstance(failure, NonFiniteLogits)
    assert decision == AcceptanceResult(0, next_token(PROMPT))


# -- bad neighbours ---------------------------------------------------------------------------------------------


PARAMS = SamplingParams(temperature=0, max_tokens=20)
BAD_OPENS = {
    "a bad id": (Open((VOCAB,), PARAMS), InvalidRequest),
    "a bad rule": (Open((1,), PARAMS, rule="telepathy"), Unsupported),
    "a bad stop id": (Open((1,), replace(PARAMS, stop_ids=(VOCAB,))), InvalidRequest),
    "a prompt too long": (Open((1,) * 200, PARAMS), InvalidRequest),
}


@pytest.mark.parametrize("name", BAD_OPENS)
async def test_a_bad_open_pushes_nobody_out(name):
    """At a full server an absent session gives way to a newcomer, but not to one who is refused anyway."""
    message, error = BAD_OPENS[name]
    async with running(FakeEngine(), limits=SessionLimits(max_sessions=1, linger=60)) as network:
        manager = network.manager
        absent, _ = await manager.open(Open((3, 1), PARAMS), "local")
        absent.attach(2)
        manager.leave(absent)
        with pytest.raises(error):
            await manager.open(message, "local")
        assert manager.remembered == (absent,)


class Broken(AcceptanceRule):
    """A rule with a bug."""

    def decide(self, check, scores):
        raise ZeroDivisionError


def test_a_bug_in_one_sequences_rule_fails_that_sequence_alone():
    sick, well = Bench(), Bench()
    pool = BlockPool(64, 4)
    sick.session.terms = replace(sick.session.terms, rule=Broken())
    sick.session.sequence.memory, well.session.sequence.memory = BlockTable(pool), BlockTable(pool)
    work = [bench.session.plan(Slice(1, len(PROMPT), True), 0.0) for bench in (sick, well)]
    expected = well.right(1)[0]
    failure, decision = run_step(FakeEngine(), work)
    assert isinstance(failure, EngineError) and decision == AcceptanceResult(0, expected)
