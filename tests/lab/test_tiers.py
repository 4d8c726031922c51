"""Recordings of three tiers: what hub and device say after any text that can come to be, and their files."""

from dataclasses import replace

import pytest

from lab.testbed.emulation.hub_recorder import record_hub
from lab.testbed.emulation.recorded_items import MAX_TOKENS, recorded_items
from lab.testbed.recordings import BUNDLED
from lab.testbed.tiers import (
    SMALL,
    TIERS,
    Aside,
    HubTrace,
    HubTraces,
    agreement,
    joined,
    read_hub,
    tiered,
    write_hub,
)
from lab.testbed.traces import ItemTrace, Proposal, TraceSet, read_traces
from opensled.core.errors import UsageError
from tests.lab.made_tiers import made_tiers

TEXT = (10, 11, 12, 13)
# The device says 11 after 10 and so on, but 90 at place 2, as the hub does, and 77 after that.
DRAFTS = ((10, 11, 90, 77), (11, 90, 77), (90, 77), (13, 66, 66))
TRACE = ItemTrace(
    "item",
    (1, 2),
    TEXT,
    "eos",
    tuple(Proposal((*ids, *[ids[-1]] * 8)[:8], (0.9,) * 8) for ids in DRAFTS),
    alone_ids=(10,),
)
ITEM = tiered(TRACE, [Aside(2, (90, 91, 92), (77, 92), (0.5, 0.4)), Aside(3, (80, 81), (81,), (0.3,))])


def test_the_hub_writes_the_text_until_it_leaves_it():
    assert ITEM.vetted_after(()) == (10, 11, 90, 91, 92)
    assert ITEM.vetted_after((10, 11)) == (90, 91, 92)
    assert ITEM.vetted_after((10, 11, 90)) == (91, 92)
    assert ITEM.vetted_after((10, 11, 12)) == (80, 81)
    assert ITEM.vetted_after(TEXT) == ()
    with pytest.raises(AssertionError, match="nobody wrote"):
        ITEM.vetted_after((10, 11, 90, 5))


def drafts_after(*text: int, most: int = 6) -> list[int]:
    """The ids that the device drafts after a text."""
    tokens = (1, 2, *text)
    found = [ITEM.following(tokens, len(tokens), index) for index in range(most)]
    return [each[0] for each in found if each is not None]


def test_the_device_drafts_on_behind_what_the_hub_wrote():
    assert drafts_after(10, 11, 90) == [77] * 6  # not the hub's next one: what follows never counts
    assert drafts_after(10, 11, 90, 91) == [92] * 6
    assert drafts_after(10, 11, 90, 91, 92) == []
    assert ITEM.following((1, 2, 10, 11, 90), 5, 0) == (77, 0.5)


def test_the_device_drafts_as_recorded_on_the_text():
    assert drafts_after(10, 11, 12, most=8) == [13] + [66] * 7
    assert drafts_after(10, most=3) == [11, 90, 77]
    # Beyond the eight tokens recorded at a place its way goes on with those of later places, here the hub's own way.
    assert drafts_after(most=12) == [10, 11, 90] + [77] * 9
    assert drafts_after(*TEXT) == []


def test_a_device_that_always_agrees_drafts_the_whole_way_of_the_hub():
    for item in made_tiers(0.7, 1.0, items=6, tokens=30).items:
        for place in range(len(item.target_ids)):
            tokens = (*item.prompt_ids, *item.target_ids[:place])
            expected = item.vetted_after(item.target_ids[:place])
            aside = next((each for each in item.asides if each.place == place), None)
            if aside is not None:  # the device drafts the text there, and not what the hub says
                tokens, expected = (*tokens, aside.ids[0]), aside.ids[1:]
                ours = [item.following(tokens, len(tokens), index) for index in range(len(expected))]
                assert [each[0] for each in ours if each] == list(expected)


# -- files ------------------------------------------------------------------------------------------------------

ORIGIN = {"command": "made"}
TRACES = TraceSet("tiny", "llamacpp", ORIGIN, (TRACE,))
HUB = HubTraces("tiny", "tiny-hub", "llamacpp", ORIGIN, (HubTrace("item", TEXT, ITEM.asides),))


def test_a_file_gives_back_what_was_written(tmp_path):
    path = tmp_path / "hub.jsonl.gz"
    write_hub(path, HUB)
    assert read_hub(path) == HUB
    assert joined(TRACES, read_hub(path)).items == (ITEM,)


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "hub.jsonl.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(UsageError, match="nothing that a hub wrote"):
        read_hub(path)


def test_recordings_of_other_texts_do_not_join():
    with pytest.raises(UsageError, match="another text"):
        joined(replace(TRACES, items=(replace(TRACE, target_ids=(9, 9)),)), HUB)


# -- what is packaged -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "hub"), [(TIERS, "tiny-hub"), (SMALL, "tiny-draft")])
def test_packaged_hubs_belong_to_the_packaged_texts(file, hub):
    traces = joined(read_traces(BUNDLED), read_hub(file))
    assert traces.origin["hub"] == hub and file.stat().st_size < 400_000
    for item in traces.items:
        longest = len(item.target_ids) if item.finish_reason == "length" else MAX_TOKENS
        for aside in item.asides:
            assert aside.ids[0] != item.target_ids[aside.place]
            assert len(aside.drafts) == len(aside.confidences) == len(aside.ids) - 1
            assert aside.place + len(aside.ids) <= longest


def test_the_hub_is_right_more_often_than_the_device_and_most_where_both_agree():
    lines = agreement(joined(read_traces(BUNDLED), read_hub(TIERS)).items)
    shares = [float(line.split(": ")[1].split()[0]) for line in lines]
    hub, device, _, both, other = shares
    assert device < hub and other < hub < both


@pytest.mark.long
def test_recording_a_hub_again_gives_the_same():
    traces = read_traces(BUNDLED)
    few = replace(traces, items=traces.items[9:11])
    again = record_hub("tiny-hub", few, recorded_items())
    for new, old in zip(again.items, read_hub(TIERS).items[9:11]):
        assert (new.item, new.target_ids) == (old.item, old.target_ids)
        assert [(aside.place, aside.ids) for aside in new.asides] == [
            (aside.place, aside.ids) for aside in old.asides
        ]
