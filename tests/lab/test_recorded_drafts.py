"""Which drafts plans and grids rest on: tasks, and recorded pairs."""

import json

import pytest

from lab.benchmarks import law_table
from lab.benchmarks.findings import task_rows
from lab.testbed.planner.acceptance import of_traces
from lab.testbed.planner.mode_map import panels
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.planner.setting import work_of
from lab.testbed.planner.task_acceptance import TASKS, rates_of
from lab.testbed.recordings import DEFAULT_PAIR, check_pair, recording
from opensled.cli.main import main
from opensled.core.errors import UsageError

TINY, CODE = RecordedDrafts("tiny"), RecordedDrafts("tiny", "code")


# -- tasks and pairs --------------------------------------------------------------------------------------------


def test_a_task_stands_for_its_acceptance_and_a_number_for_itself():
    rates = {name: rates_of(name)[0] for name in TASKS}
    assert rates == {"chat": 0.6, "mixed": 0.68, "code": 0.8, "mismatched": 0.35}
    assert (rates_of("0.72"), rates_of("0"), rates_of("")) == ((0.72,), (0,), ())
    for wrong in ("1", "-0.1", "nan", "poems"):
        with pytest.raises(UsageError, match=r"number from 0 to 0\.99, or one of chat \(0\.6\)"):
            rates_of(wrong)


def test_tokens_of_a_round_follow_from_the_acceptance():
    """As published figures were turned into tokens a round of four drafted."""
    rounds = {row[0]: row[2] for row in task_rows()}
    assert rounds == {"`mismatched`": "1.53", "`chat`": "2.31", "`mixed`": "2.67", "`code`": "3.36"}
    assert work_of(CODE).acceptance.tokens[4] == pytest.approx(3.36, abs=0.005)


def test_made_up_drafts_are_right_at_the_rate_of_their_task_with_ids_of_the_vocabulary():
    made = traces_of(CODE)
    assert of_traces(made).first == pytest.approx(0.8, abs=0.02)
    assert [item.target_ids for item in made.items] == [item.target_ids for item in traces_of(TINY).items]
    ids = [id for item in made.items for proposal in item.proposals for id in proposal.ids]
    assert min(ids) >= 0 and max(ids) <= max(id for item in made.items for id in item.target_ids)


def test_the_pair_that_predictions_rest_on_is_recorded_and_a_missing_one_is_named():
    assert recording(DEFAULT_PAIR).is_file()
    check_pair(DEFAULT_PAIR)
    with pytest.raises(UsageError, match="choose from tiny, smollm2"):
        check_pair("llama")


def test_a_pair_without_a_recording_is_told_with_the_next_step(monkeypatch, tmp_path):
    monkeypatch.setattr("lab.testbed.recordings.PACKAGED", tmp_path)
    with pytest.raises(UsageError, match=r"nothing is recorded with the pair 'smollm2'.*--target smollm2"):
        check_pair("smollm2")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "as recorded with SmolLM2-135M-Instruct and its draft, 57 % of first tokens accepted"),
        (("--acceptance", "chat"), "made up, 0.6 of them right, as on open chat"),
        (("--acceptance", "0.725"), "made up, 0.725 of them right at each position"),
    ],
)
def test_a_plan_says_which_drafts_it_assumes(words, told, capsys):
    assert main(["plan", "--json", *words]) == 0
    assumes = json.loads(capsys.readouterr().out)["assumes"]
    assert told in assumes["drafts"]
    assert ("--acceptance" in assumes["drafts"]) == (not words)


# -- the law ----------------------------------------------------------------------------------------------------


def test_by_the_law_better_drafts_pay_at_more_places(monkeypatch):
    monkeypatch.setattr(law_table, "panels", lambda: panels()[-1:])  # the small hub with much KV to read
    found = {row[0]: row[1:] for row in law_table.law_rows()}
    assert list(found)[-4:] == ["mismatched", "chat", "mixed", "code"] and "tiny (recorded)" in found
    assert {sum(map(int, row[:4])) for row in found.values()} == {7 * 4 * 4}
    devices = [int(found[name][2]) for name in ("mismatched", "chat", "mixed", "code")]
    assert devices == sorted(devices) and devices[0] < devices[-1]
    assert float(found["code"][4]) > 4 and found["code"][5].startswith("dense-8b on agx-orin, 8192 positions")
