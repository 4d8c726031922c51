"""The figures of a run, against records made by hand. `pytest tests/lab/test_load_summary.py`"""

import json

import pytest

from lab.testbed.load.records import Round, ServerTotals, between
from lab.testbed.load.slo import Slo, paces
from lab.testbed.load.summary import summarise
from tests.lab.run_records import record, result


def test_latencies_follow_vllms_formulas():
    figures = summarise(result(record(), record(arrivals=((11.5, 1), (13.5, 1)))), Slo())
    assert figures["mean_ttft_ms"] == 1000  # 500 and 1500
    assert figures["std_ttft_ms"] == 500
    assert figures["p99_ttft_ms"] == pytest.approx(1490)
    assert figures["mean_tpot_ms"] == pytest.approx((1500 / 7 + 2000) / 2, rel=1e-4)
    assert figures["mean_itl_ms"] == pytest.approx((500 + 1000 + 2000) / 3, rel=1e-4)
    assert figures["median_e2el_ms"] == 2750


def test_throughput_counts_what_happened_within_the_window_whenever_it_was_asked_for():
    early = record(sent=8.0, arrivals=((9.0, 2), (12.0, 4)))
    cut = record(arrivals=((11.0, 3),), finish_reason="")
    late = record(sent=19.0, arrivals=((19.5, 1), (20.5, 7)), finish_reason="")
    figures = summarise(result(early, cut, late, record()), Slo())
    assert figures["total_output_tokens"] == 4 + 3 + 1 + 8
    assert figures["output_throughput"] == 1.6
    assert (figures["completed"], figures["request_throughput"]) == (2, 0.2)
    assert figures["total_input_tokens"] == 10
    assert figures["mean_e2el_ms"] == 2000  # of the one that was sent within the window and finished


def test_goodput_needs_all_limits_and_failures_have_none():
    fast, slow = record(), record(arrivals=((10.5, 1), (18.0, 4)))
    failed = record(error="lost", finish_reason="")
    both = Slo(ttft_s=1, tpot_s=0.5, e2el_s=5)
    assert summarise(result(fast, slow, failed), both)["request_goodput"] == 0.1
    assert summarise(result(fast, slow, failed), Slo(ttft_s=0.4))["request_goodput"] == 0
    assert summarise(result(fast, slow, failed), Slo())["failed"] == 1


def test_users_are_served_by_their_pace_and_one_without_an_answer_is_not():
    quick = record(user=0)  # 7 tokens in 1.5 s
    slow = record(user=1, arrivals=((10.5, 1), (18.5, 4)))  # 4 tokens in 8 s
    unheard = record(user=2, finish_reason="", arrivals=())
    figures = summarise(result(quick, slow, unheard), Slo(pace=4))
    assert (figures["served"], figures["users"]) == (1, 3)
    assert figures["pace_median"] == 0.5


def test_speculation_is_told_by_position_and_with_what_was_wasted():
    rounds = [Round(10, 10.1, 3, 3), Round(11, 11.1, 3, 1), Round(12, 12.1, 1, 0)]
    figures = summarise(result(record(rounds=rounds, wasted=6)), Slo())
    assert figures["acceptance_rate"] == pytest.approx(4 / 7, rel=1e-4)
    assert figures["acceptance_per_position"] == [pytest.approx(2 / 3, rel=1e-4), 0.5, 0.5]
    assert figures["tokens_per_round"] == pytest.approx(1 + 4 / 3, rel=1e-4)
    assert (figures["drafted_tokens"], figures["wasted_draft_tokens"]) == (10, 6)
    assert figures["wasted_share"] == 0.6


def test_a_silent_release_is_counted_after_its_timeout_only():
    rounds = [Round(10, 10.4, 4, 1), Round(11, 11.6, 4, 3)]
    figures = summarise(result(record(rounds=rounds)), Slo())
    assert (figures["released_unverified"], figures["released_wrong"]) == (4, 1)
    sooner = summarise(result(record(rounds=rounds)), Slo(), release_s=0.3)
    assert (sooner["released_unverified"], sooner["released_wrong"]) == (8, 4)


def test_server_and_traffic_are_told_per_token():
    totals = {
        "steps": 10,
        "step_sessions": 40,
        "positions": 90,
        "tokens": 60,
        "stale_drafts": 2,
        "busy_s": 5.0,
    }
    figures = summarise(result(record(bytes_up=80, bytes_down=160), **totals), Slo())
    assert (figures["mean_batch"], figures["positions_per_token"], figures["busy_share"]) == (4, 1.5, 0.5)
    assert (figures["bytes_up_per_token"], figures["bytes_down_per_token"]) == (10, 20)
    assert (figures["steps"], figures["stale_drafts"]) == (10, 2)


def test_a_run_without_any_request_has_a_summary_that_json_takes():
    figures = summarise(result(), Slo())
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    at_once = summarise(result(record(arrivals=((10.5, 8),))), Slo())
    json.dumps(at_once, allow_nan=False)


def test_only_the_difference_of_two_readings_counts():
    before, after = ServerTotals(3, 9, 20, 10, 1, 0.5), ServerTotals(5, 15, 50, 30, 1, 2.0)
    assert between(before, after) == ServerTotals(2, 6, 30, 20, 0, 1.5)


def test_a_pace_counts_what_was_read_in_the_window_of_answers_that_are_not_finished_too():
    steady = record(sent=2.0, arrivals=tuple((4.0 + second, 10) for second in range(18)), finish_reason="")
    begun = record(user=1, sent=9.0, arrivals=((9.5, 10), (14.0, 30)), finish_reason="")
    silent = record(user=2, sent=11.0, arrivals=((12.0, 10), (13.0, 10)), finish_reason="")
    never = record(user=3, sent=1.0, arrivals=((2.0, 5),), finish_reason="")
    found = paces(result(steady, begun, silent, never))
    assert found[0] == 10  # from the first token in the window to the last
    assert found[1] == 0  # one chunk in the window, and then nothing for six seconds
    assert found[2] == pytest.approx(10 / 8)  # and this one waits for seven
    assert found[3] == 0
