"""Which drafts plans and grids rest on: tasks, and recorded pairs."""

import asyncio
import json
from dataclasses import replace

import pytest

from lab.benchmarks import law_table, regimes
from lab.benchmarks.cell_run import Scale
from lab.benchmarks.cell_turns import short_items, shortened
from lab.benchmarks.findings import task_rows
from lab.testbed.baselines import BASELINES
from lab.testbed.cells import CELLS
from lab.testbed.emulation.recorded_target import ENGINE, RecordedEngine
from lab.testbed.load.load import Load
from lab.testbed.load.run import run_fleet
from lab.testbed.planner.acceptance import of_traces
from lab.testbed.planner.mode_map import panels
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.planner.setting import work_of
from lab.testbed.planner.task_acceptance import TASKS, rates_of
from lab.testbed.recordings import BUNDLED, DEFAULT_PAIR, check_pair, recording
from lab.testbed.traces import ItemTrace, read_traces
from opensled.cli.main import main
from opensled.core.errors import UsageError
from opensled.core.messages import SamplingParams
from verify_server.engine.base import SampleRequest, Segment
from verify_server.kv.blocks import BlockPool, BlockTable

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


# -- a recorded target --------------------------------------------------------------------------------------------


TEXT = tuple(range(50, 80))
ITEMS = (
    ItemTrace("one", tuple(range(1, 20)), TEXT, "length", ()),
    ItemTrace("two", tuple(range(1, 18)), (9, 8, 7, 2), "eos", ()),
)


def own(engine: RecordedEngine, *segments: Segment) -> list[int]:
    """The tokens of all rows."""
    scores = engine.forward(segments)
    rows = range(sum(segment.rows for segment in segments))
    [answer] = scores.sample([SampleRequest(rows, SamplingParams(), b"", 0)])
    return list(answer)


def test_two_sessions_of_one_step_each_go_on_with_their_own_text():
    engine = RecordedEngine(ITEMS, 100)
    pool = BlockPool(8, engine.info.block_size)
    one, two = BlockTable(pool), BlockTable(pool)
    for table, item in ((one, ITEMS[0]), (two, ITEMS[1])):
        table.grow(len(item.prompt_ids) + 8)
    prompts = [Segment(item.prompt_ids, 0, tuple(table.blocks), 1) for table, item in zip((one, two), ITEMS)]
    assert own(engine, *prompts) == [50, 9]
    # A draft of which the second token is wrong: the rows up to it say what follows.
    draft = Segment((50, 51, 99, 52), 19, tuple(one.blocks), 4)
    assert own(engine, draft, Segment((9,), 17, tuple(two.blocks), 1))[:2] == [51, 52]
    # What was wrong is written over.
    assert own(engine, Segment((52, 53), 21, tuple(one.blocks), 2)) == [53, 54]
    assert engine.info.eos_ids == (2,)


def test_every_row_of_a_tree_follows_its_own_path():
    engine = RecordedEngine(ITEMS, 100)
    table = BlockTable(BlockPool(8, engine.info.block_size))
    table.grow(40)
    blocks = tuple(table.blocks)
    assert own(engine, Segment(ITEMS[0].prompt_ids, 0, blocks, 1)) == [50]
    # Behind the newest token, 50: either 99, or 51 and 52. They stand at positions 20 to 22.
    tree = Segment((50, 99, 51, 52), 19, blocks, 4, parents=(-1, -1, 1))
    rows = own(engine, tree)
    assert [rows[0], *rows[2:]] == [51, 52, 53]
    engine.compact(blocks, [(21, 20), (22, 21)])
    assert own(engine, Segment((53, 54), 22, blocks, 2)) == [54, 55]


@pytest.mark.parametrize("source", [RecordedDrafts("tiny"), RecordedDrafts("tiny", "code")])
def test_a_cell_has_live_drafters_only_for_the_recorded_drafts_of_the_bundled_pair(source):
    document = regimes.measure((), Scale(), None, None, source=source)
    cell = regimes._of(CELLS[0], source)
    assert cell.live == (source.acceptance == "")
    assert document["figure"] == ("regimes" if cell.live else "regimes-code")
    assert ("accuracy" in document["facts"]) == cell.live
    assert document["label"] == "simulated"


def test_a_cell_of_another_pair_has_a_server_that_replays_its_target():
    cell = replace(CELLS[4], pair="smollm2")
    server = cell.fleet().server
    assert (server.model, server.engine) == ("smollm2", ENGINE)
    assert CELLS[4].fleet().server.engine == "torch"


@pytest.mark.long
@pytest.mark.parametrize("acceptance", ["", "0.8"])
def test_devices_get_the_recorded_texts_from_a_server_that_replays_them(acceptance):
    """Real processes; of made-up drafts the wrong ids are ids of the vocabulary, or the server would refuse them."""
    cell = replace(CELLS[4], users=2)
    fleet = BASELINES["sled-continuous"](cell.fleet())
    fleet = replace(fleet, server=replace(fleet.server, engine=ENGINE))
    traces = shortened(traces_of(RecordedDrafts("tiny", acceptance)), 12)
    result = asyncio.run(run_fleet(fleet, short_items(12), traces, Load(warmup=0.5, duration=5.0)))
    texts = {item.item: item for item in shortened(read_traces(BUNDLED), 12).items}
    done = [request for request in result.requests if request.finish_reason]
    assert done and not any(request.error for request in result.requests)
    assert {request.item for request in done} <= set(texts)
    assert any(round.accepted for request in done for round in request.rounds)
    assert all(
        sum(arrival.tokens for arrival in request.arrivals) == len(texts[request.item].target_ids)
        for request in done
    )
