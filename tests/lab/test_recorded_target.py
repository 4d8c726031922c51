"""A target that writes what was recorded, and cells of any pair."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from lab.benchmarks import regimes
from lab.benchmarks.cell_run import Scale
from lab.benchmarks.cell_turns import short_items, shortened
from lab.testbed.baselines import BASELINES
from lab.testbed.cells import CELLS
from lab.testbed.emulation.recorded_target import ENGINE, RecordedEngine
from lab.testbed.load.load import Load
from lab.testbed.load.run import run_fleet
from lab.testbed.planner.recorded_drafts import RecordedDrafts, traces_of
from lab.testbed.recordings import BUNDLED
from lab.testbed.traces import ItemTrace, read_traces
from opensled.core.messages import SamplingParams
from verify_server.engine.base import SampleRequest, Segment
from verify_server.kv.blocks import BlockPool, BlockTable

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


def test_two_sessions_of_one_step_each_go_on_with_their_own_text() -> None:
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


def test_every_row_of_a_tree_follows_its_own_path() -> None:
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
def test_a_cell_has_live_drafters_only_for_the_recorded_drafts_of_the_bundled_pair(
    source: RecordedDrafts,
) -> None:
    document = regimes.measure((), Scale(), None, None, source=source)
    cell = regimes._of(CELLS[0], source)
    assert cell.live == (source.acceptance == "")
    assert document["figure"] == ("regimes" if cell.live else "regimes-code")
    assert ("accuracy" in document["facts"]) == cell.live
    assert document["label"] == "simulated"


def test_a_cell_of_another_pair_has_a_server_that_replays_its_target() -> None:
    cell = replace(CELLS[4], pair="smollm2")
    server = cell.fleet().server
    assert (server.model, server.engine) == ("smollm2", ENGINE)
    assert CELLS[4].fleet().server.engine == "torch"


@pytest.mark.long
@pytest.mark.parametrize("acceptance", ["", "0.8"])
def test_devices_get_the_recorded_texts_from_a_server_that_replays_them(acceptance: str) -> None:
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
