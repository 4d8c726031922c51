"""Recorded drafts: the file, what it says of rounds, and that the packaged ones are the real models' own."""

import gzip
from copy import copy
from dataclasses import replace
from functools import cache

import pytest

from lab.testbed.emulation.recorded_items import KINDS, recorded_items
from lab.testbed.emulation.recorder import LONGEST, Recorder, main, record, table
from lab.testbed.emulation.target_texts import load_target
from lab.testbed.emulation.trace_parts import add_to_part, read_part
from lab.testbed.reference import Reference
from lab.testbed.traces import PACKAGED, ItemTrace, Proposal, TraceSet, read_traces, rounds, write_traces
from opensled.core.errors import UsageError, VocabularyMismatch
from opensled.core.messages import is_chat
from opensled.models.store import model_path
from verify_server.round.loaded_model import ServedModel

DRAFTERS = ("llamacpp", "lookup")
RECORDER = "lab.testbed.emulation.recorder"


def trace_of(reason: str = "eos") -> ItemTrace:
    """A drafter that knows two tokens and then repeats itself."""
    text = (5, 6, 7, 8, 9)
    proposals = tuple(Proposal((*text[place : place + 2], 1, 1), (0.5,) * 4) for place in range(5))
    return ItemTrace("item", (1, 2), text, reason, proposals, (5, 6, 1))


@cache
def packaged(drafter: str) -> TraceSet:
    return read_traces(PACKAGED / f"tiny-{drafter}.jsonl.gz")


@cache
def target() -> ServedModel:
    return load_target()


# -- the file ---------------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again_and_the_same_traces_give_the_same_bytes(tmp_path):
    traces = TraceSet("tiny", "lookup", {"commit": "0"}, (trace_of(), trace_of("length")))
    one, other = tmp_path / "one.gz", tmp_path / "folder" / "other.gz"
    write_traces(one, traces)
    write_traces(other, traces)
    assert read_traces(one) == traces
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", *(gzip.compress(text, mtime=0) for text in (b"", b"{}", b'{"target": "t"}\n{}')), None],
)
def test_a_file_that_holds_no_traces_is_refused_by_name(content, tmp_path):
    path = tmp_path / "drafts.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"drafts\.gz"):
        read_traces(path)


# -- rounds -----------------------------------------------------------------------------------------------------


def test_rounds_walk_the_text_in_blocks():
    assert list(rounds(trace_of(), 4)) == [(4, 2), (4, 2)]
    assert list(rounds(trace_of(), 1)) == [(1, 1), (1, 1), (1, 1)]
    assert list(rounds(trace_of(), 0)) == [(0, 0)] * 5


def test_the_last_position_of_a_limit_needs_no_draft():
    assert list(rounds(trace_of("length"), 4)) == [(4, 2), (1, 1)]
    assert list(rounds(trace_of("length"), 1)) == [(1, 1), (1, 1), (0, 0)]


# -- the packaged recordings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_recordings_are_of_the_documented_items(drafter):
    traces, items = packaged(drafter), recorded_items()
    assert (traces.target, traces.drafter) == ("tiny", drafter)
    assert [trace.item for trace in traces.items] == [item.id for item in items]
    assert {item.temperature for item in items} == {0.0, 0.8} and len({item.task for item in items}) == 10
    assert len({trace.prompt_ids for trace in traces.items}) == len(items)
    assert traces.origin["commit"] and drafter in traces.origin["command"]
    assert (PACKAGED / f"tiny-{drafter}.jsonl.gz").stat().st_size < 400_000


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_place_of_every_text_has_its_proposals(drafter):
    for trace in packaged(drafter).items:
        assert len(trace.proposals) == len(trace.target_ids) <= 64
        assert trace.finish_reason == (
            "length" if len(trace.target_ids) == 64 and trace.target_ids[-1] else "eos"
        )
        for proposal in trace.proposals:
            assert len(proposal.ids) == len(proposal.confidences) <= LONGEST
            assert all(0 <= confidence <= 1 for confidence in proposal.confidences)
    assert all(bool(trace.alone_ids) == (drafter == "llamacpp") for trace in packaged(drafter).items)


def test_proposals_follow_from_each_other_while_they_are_right():
    """After a right token the drafter goes on with what it had proposed behind it."""
    for trace in packaged("llamacpp").items:
        for place, (now, then) in enumerate(zip(trace.proposals, trace.proposals[1:])):
            if now.ids[0] == trace.target_ids[place]:
                assert now.ids[1:] == then.ids[: LONGEST - 1]


def test_both_recordings_hold_the_same_texts():
    texts = [[(trace.item, trace.target_ids) for trace in packaged(name).items] for name in DRAFTERS]
    assert texts[0] == texts[1]


def test_the_texts_are_what_the_reference_writes():
    reference = Reference(model_path("tiny"), dtype="float64")
    pairs = list(zip(recorded_items(), packaged("llamacpp").items))
    greedy, sampled = ([pair for pair in pairs if pair[0].temperature == heat] for heat in (0.0, 0.8))
    for item, trace in (*greedy[::30], *sampled[::20]):
        messages = item.prompt if is_chat(item.prompt) else ()
        turns = [{"role": message.role, "content": message.content} for message in messages]
        prompt = reference.render_chat(turns) if turns else reference.encode(str(item.prompt))
        assert tuple(prompt) == trace.prompt_ids
        written, reason = reference.generate(
            prompt, temperature=item.temperature, seed=item.seed, max_tokens=item.max_tokens
        )
        assert (tuple(written), reason) == (trace.target_ids, trace.finish_reason)


@pytest.mark.parametrize("drafter", [pytest.param("llamacpp", marks=pytest.mark.long), "lookup"])
def test_recording_again_gives_the_same(drafter):
    """Token for token where no float is involved; a draft model on another processor may round otherwise."""
    again = record(target(), drafter, recorded_items()[9:13]).items
    for new, old in zip(again, packaged(drafter).items[9:13]):
        assert (new.item, new.prompt_ids, new.target_ids) == (old.item, old.prompt_ids, old.target_ids)
        pairs = [pair for both in zip(new.proposals, old.proposals) for pair in zip(both[0].ids, both[1].ids)]
        same = sum(one == other for one, other in pairs)
        assert same == len(pairs) if drafter == "lookup" else same >= 0.95 * len(pairs)


def test_the_table_counts_what_the_rounds_say():
    lines = {line.split()[0]: line.split()[1:] for line in table(packaged("llamacpp")).splitlines()}
    pairs = [pair for trace in packaged("llamacpp").items for pair in rounds(trace, 4)]
    tokens = sum(len(trace.target_ids) for trace in packaged("llamacpp").items)
    assert float(lines["all"][4]) == pytest.approx(tokens / len(pairs), abs=0.001)
    assert float(lines["all"][3]) == pytest.approx(
        sum(p[1] for p in pairs) / sum(p[0] for p in pairs), abs=0.001
    )
    first = [pair for trace in packaged("llamacpp").items for pair in rounds(trace, 1)]
    assert float(lines["all"][2]) == pytest.approx(
        sum(p[1] for p in first) / sum(p[0] for p in first), abs=0.001
    )
    assert len(lines) == 12


def test_an_unknown_drafter_is_an_error_and_no_traceback(tmp_path, capsys):
    assert main(["--drafter", "crystal-ball", "--out", str(tmp_path)]) == 2
    assert "crystal-ball" in capsys.readouterr().err


# -- any pair ---------------------------------------------------------------------------------------------------


def test_a_pair_is_asked_sixteen_prompts_of_each_kind_half_of_them_greedy():
    items = recorded_items("smollm2")
    assert [sum(item.task == kind for item in items) for kind in KINDS] == [16] * 6
    for kind in KINDS:
        mine = [item for item in items if item.task == kind]
        assert sum(item.temperature == 0 for item in mine) == 8
        assert len({item.prompt for item in mine}) == 16
    assert {item.max_tokens for item in items} == {96} and len({item.id for item in items}) == 96


def test_a_recording_that_was_ended_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    """The second run asks only for what the first one lacks; the file is that of a run without an end."""
    monkeypatch.setattr(f"{RECORDER}.load_target", lambda model: target())
    words = ["--drafter", "lookup", "--items", "3", "--out"]
    asked, traced = [], Recorder.trace

    def ending(self, item):
        asked.append(item.id)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return traced(self, item)

    monkeypatch.setattr(Recorder, "trace", ending)
    with pytest.raises(KeyboardInterrupt):
        main([*words, str(tmp_path / "one")])
    assert not (tmp_path / "one/tiny-lookup.jsonl.gz").exists()
    assert main([*words, str(tmp_path / "one")]) == 0
    monkeypatch.setattr(Recorder, "trace", traced)
    assert main([*words, str(tmp_path / "two")]) == 0
    assert asked == [item.id for item in (*recorded_items()[:3], recorded_items()[2])]
    one, two = (read_traces(tmp_path / name / "tiny-lookup.jsonl.gz") for name in ("one", "two"))
    assert one.items == two.items
    assert [trace.task for trace in one.items] == [item.task for item in recorded_items()[:3]]
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["tiny-lookup.jsonl.gz"]
    assert main([*words, str(tmp_path / "one")]) == 0
    assert "kept: " in capsys.readouterr().out


def test_a_part_of_another_recording_is_refused_and_a_line_that_was_cut_off_is_left_out(tmp_path):
    path, head = tmp_path / "x.part", {"target": "tiny"}
    for _ in range(2):
        add_to_part(path, head, trace_of())
    with path.open("a") as file:
        file.write('{"item": "cu')
    assert read_part(path, head) == [trace_of()] * 2
    add_to_part(path, head, trace_of("length"))
    assert read_part(path, head) == [trace_of(), trace_of(), trace_of("length")]
    with pytest.raises(UsageError, match="another recording"):
        read_part(path, {"target": "smollm2"})


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(f"{RECORDER}.load_target", lambda model: other_vocabulary(target()))
    assert (
        main(["--draft", "tiny-draft", "--drafter", "llamacpp", "--out", str(tmp_path)])
        == VocabularyMismatch.exit_code
    )
    assert "tiny-draft" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def other_vocabulary(found: ServedModel) -> ServedModel:
    text = copy(found.text)
    text.fingerprint = "0" * 64
    return replace(found, text=text)


def test_texts_that_another_drafter_s_file_has_are_not_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{RECORDER}.load_target", lambda model: target())
    words = ["--items", "2", "--out", str(tmp_path), "--drafter"]
    assert main([*words, "lookup"]) == 0
    monkeypatch.setattr(f"{RECORDER}.write_text", None)
    assert main([*words, "llamacpp"]) == 0
    one, other = (read_traces(tmp_path / f"tiny-{name}.jsonl.gz").items for name in ("lookup", "llamacpp"))
    assert [trace.target_ids for trace in one] == [trace.target_ids for trace in other]
    assert [len(trace.proposals) for trace in other] == [len(trace.target_ids) for trace in other]
