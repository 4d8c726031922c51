"""What lab/benchmarks/vllm_engine.py asks, replays and sums up; a run on real servers is in tests/vllm, marked long."""

import json

import pytest

from lab.benchmarks import vllm_engine, vllm_figure, vllm_servers
from lab.benchmarks.vllm_figure import CONTENDERS, OURS, OURS_NGRAM, STOCK, STOCK_NGRAM, Turn
from lab.benchmarks.vllm_users import Recordings, Replayed, User

PROMPT, TEXT = (1, 2, 3), tuple(range(100, 400))
USER = User("chat", PROMPT, len(TEXT))


def turn(contender: str, users: int, number: int, rate: float, **more: float) -> Turn:
    tokens = 64 * users
    facts = {
        "steps": tokens // 2,
        "drafted": 0,
        "accepted": 0,
        "own_drafted": 0,
        "own_accepted": 0,
        "cpu_s": 1.0,
        "other": 0,
    }
    return Turn(
        contender, users, number, ("chat",) * users, tokens, tokens / rate, first_s=0.1, **{**facts, **more}
    )


TURNS = [
    turn(name, users, number, rate * (1 + number / 10))
    for name, rate in ((STOCK, 100.0), (OURS, 97.0), (f"{OURS}, devices 0.8 (replayed)", 150.0))
    for users in (1, 8)
    for number in (0, 1)
]


@pytest.mark.parametrize("share", [0.6, 0.8, 1.0])
def test_a_share_of_the_replayed_tokens_is_right(share: float) -> None:
    recordings = Recordings()
    recordings.add(PROMPT, TEXT)
    [trace] = recordings.traces(USER, share)
    drafted = [proposal.ids[0] for proposal in trace.proposals]
    right = sum(one == other for one, other in zip(drafted, TEXT, strict=True)) / len(TEXT)
    assert right == pytest.approx(share, abs=0.08)
    assert recordings.traces(USER, share) == [trace]  # a wrong token is wrong in every turn


def test_a_text_that_departs_is_drafted_from_the_recording_that_fits() -> None:
    other = (*TEXT[:5], *range(500, 795))
    recordings = Recordings()
    for text in (TEXT, other, TEXT):
        recordings.add(PROMPT, text)
    traces = recordings.traces(USER, 1.0)
    assert [trace.target_ids for trace in traces] == [TEXT, other] and recordings.first(PROMPT) == TEXT
    drafts = Replayed(traces)
    assert drafts.fitting(other[:7]).target_ids == other
    assert drafts.fitting(TEXT[:7]).target_ids == TEXT


def test_the_figure_compares_ours_with_vllm_and_drafts_with_none() -> None:
    grouped = vllm_figure.by_contender(TURNS)
    devices = f"{OURS}, devices 0.8 (replayed)"
    assert set(vllm_figure.pairs_of(grouped)) == {
        (name, other, users)
        for name, other in ((OURS, STOCK), (devices, OURS), (devices, STOCK))
        for users in (1, 8)
    }
    assert vllm_figure.interval(grouped[OURS, 8], grouped[STOCK, 8]) == {
        "mean": 0.97,
        "low": 0.97,
        "high": 0.97,
    }
    told = vllm_figure.summary([turn(OURS, 8, 0, 100.0, drafted=10, accepted=6)])
    assert (told["tokens a step"], told["of devices' draft tokens, accepted"]) == (2.0, 0.6)
    assert told["of vLLM's draft tokens, accepted"] is None
    page = "\n".join(vllm_figure.lines(TURNS))
    assert "| 8 | opensled | 101.8 | 0.970 | 0.970 to 0.970 |" in page


def test_vllms_own_drafter_is_compared_with_itself() -> None:
    grouped = vllm_figure.by_contender([turn(name, 1, 0, 100.0) for name in (STOCK, STOCK_NGRAM, OURS_NGRAM)])
    assert set(vllm_figure.pairs_of(grouped)) == {
        (OURS_NGRAM, STOCK_NGRAM, 1),
        (OURS_NGRAM, STOCK, 1),
    }


def test_what_vllm_is_told_and_tells() -> None:
    told = json.loads(vllm_servers._ngram(8))
    assert told == {
        "method": "ngram",
        "num_speculative_tokens": 8,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    page = '# HELP x\nvllm:steps{engine="0",model_name="target"} 8.0\nplain 3\n'
    assert vllm_servers._readings(page) == {"vllm:steps": 8.0, "plain": 3.0}


def test_an_unknown_contender_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert vllm_engine.main(["--quick", "--only", "none"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in CONTENDERS)
