"""lab/benchmarks/vllm_engine.py replays and sums up; a run on real servers is in tests/vllm, marked long."""

from pathlib import Path

import pytest

from lab.benchmarks import vllm_engine, vllm_servers
from lab.benchmarks.vllm_engine import DEVICES, OURS, STOCK, Turn
from lab.benchmarks.vllm_users import Recordings, Replayed, User

SIX, EIGHT = DEVICES
PROMPT, TEXT = (1, 2, 3), tuple(range(100, 400))
USER = User("chat", PROMPT, len(TEXT))


def turn(contender: str, users: int, number: int, rate: float, **more: float) -> Turn:
    tokens = 64 * users
    facts = {
        "steps": tokens // 2,
        "drafted": 0,
        "accepted": 0,
        "cpu_s": 1.0,
        "other": 0,
    }
    return Turn(
        contender, users, number, ("chat",) * users, tokens, tokens / rate, first_s=0.1, **{**facts, **more}
    )


TURNS = [
    turn(name, users, number, rate * (1 + number / 10))
    for name, rate in ((STOCK, 100.0), (OURS, 97.0), (EIGHT, 150.0))
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


def test_the_figure_compares_with_vllm_as_it_comes() -> None:
    plan = vllm_servers.Plan(Path("tiny"), "float32", 1024, 8, 8, 1, compiled=False)
    ratios = {each.name: each for each in vllm_engine.figure(plan, {}, TURNS).ratios}
    assert set(ratios) == {f"{name}, {users}" for name in (OURS, EIGHT) for users in ("1 user", "8 users")}
    assert {name: each.required for name, each in ratios.items() if each.required != 0.97} == {
        f"{EIGHT}, 1 user": 2.2
    }
    grouped = vllm_engine.by_contender(TURNS)
    same = {"mean": 0.97, "low": 0.97, "high": 0.97}
    assert vllm_engine.interval(grouped[OURS, 8], grouped[STOCK, 8]) == same
    told = vllm_engine.summary([turn(EIGHT, 8, 0, 100.0, drafted=10, accepted=6)])
    assert (told["tokens a step"], told["of draft tokens, accepted"]) == (2.0, 0.6)
    assert told["CPU of the server, us a step"] == 3906
    page = "\n".join(vllm_engine.lines(TURNS))
    assert f"| 8 | {OURS} | 101.8 | 0.970 | 0.970 to 0.970 |" in page


def test_users_and_devices_have_numbers_of_their_own() -> None:
    assert vllm_engine.contenders([1, 8], [1, 4]) == {
        1: [STOCK, OURS, SIX, EIGHT],
        4: [STOCK, SIX, EIGHT],
        8: [STOCK, OURS],
    }
    own = vllm_engine.speculating("ngram", "tiny")
    assert [*own] == [f"{STOCK}, ngram", f"{OURS}, ngram"]
    assert vllm_engine.contenders([1, 64], [1], [*own]) == {users: [STOCK, *own] for users in (1, 64)}


def test_the_figures_of_vllm_are_read() -> None:
    page = '# HELP x\nvllm:steps{engine="0",model_name="target"} 8.0\nplain 3\n'
    assert vllm_servers.readings(page) == {"vllm:steps": 8.0, "plain": 3.0}


def test_numbers_that_are_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert vllm_engine.main(["--quick", "--users", "many"]) == 2
    assert "name some, such as 1,8" in capsys.readouterr().err
