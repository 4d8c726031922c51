"""Draft heads are trained: texts become shards, shards batches, and a head learns the next token, no other."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from lab.training.distil.self_prompts import Given, Script, Written
from lab.training.heads import capture as capturing
from lab.training.heads import windows
from lab.training.heads.batches import batch_of, drawn_rows
from lab.training.heads.capture import Source, capture, writer_of
from lab.training.heads.draft_vocabulary import NONE, draft_ids, places_of
from lab.training.heads.heldout import tokens_per_step
from lab.training.heads.trainer import Plan, Trainer
from lab.training.heads.windows import TOP, Window, read_shard
from tests.head_texts import (
    END,
    LENGTH,
    VOCABULARY,
    around,
    drafts,
    heldout,
    pupil_of,
    saved,
    states_of,
    window,
)
from tests.head_texts import target as target


def test_labels_stand_two_rows_behind_their_start(target):
    """The token between the two is the newest one; ids 24 and 29 cannot be drafted. Two windows do not mix."""
    places = places_of(np.array([*range(20, 24), *range(25, 29), *range(30, 70)]), VOCABULARY)
    texts = [list(range(20, 32)), list(range(50, 61))]
    packed = [window(target, text) for text in texts]
    rows = [[0, 3, 9], [2, 7]]
    batch = batch_of(packed, list(map(np.array, rows)), places, LENGTH)
    starts = [(text, row) for text, own in zip(texts, rows) for row in own]
    assert batch.newest.tolist() == [text[row + 1] for text, row in starts]
    assert batch.positions[batch.starts].tolist() == [row for _, row in starts]
    assert np.array_equal(batch.hidden[batch.starts[4]].numpy(), packed[1].hidden[7])
    aims = batch.aims
    for draft, (text, row) in enumerate(starts):
        for place in range(LENGTH):
            at = row + 2 + place
            assert aims.valid[draft, place] == (at < len(text))
            if at < len(text):
                assert aims.tokens[draft, place] == aims.top[draft, place, 0] == places[text[at]]
                assert aims.previous[draft, place] == places[text[at - 1]]
                assert aims.probs[draft, place, 0] == (text[at] not in (24, 29))
            assert aims.probs[draft, place, int(at < len(text)) :].eq(0).all()


def test_a_label_ends_where_the_text_is_not_the_targets(target):
    own = np.array([False, False, True, True, True, False, True, True, True, True])
    text = replace(window(target, list(range(20, 30))), own=own)
    assert text.starts().tolist() == [1, 2, 5, 6, 7]
    valid = batch_of([text], [text.starts()], np.arange(VOCABULARY), LENGTH).aims.valid
    assert valid.sum(1).tolist() == [2, 1, 3, 2, 1]
    assert valid.long().diff(dim=1).le(0).all()  # nothing is valid behind what is not


def test_rows_are_drawn_anew_and_in_their_order(target):
    texts = [window(target, around(0), given=10), window(target, around(1, 6))]
    drawn = [drawn_rows(texts, 5, np.random.default_rng(seed)) for seed in (1, 2)]
    for long, short in drawn:
        assert len(long) == 5 and len(short) == 4 and sorted({*long.tolist()}) == long.tolist()
        assert set(long.tolist()) <= set(range(9, 30)) and short.tolist() == [0, 1, 2, 3]
    assert drawn[0][0].tolist() != drawn[1][0].tolist()


def test_the_draft_vocabulary_is_of_the_commonest_ids():
    ids = draft_ids(np.array([5, 5, 5, 2, 9, 9, 2, 4]), 12, 3)
    assert ids.tolist() == [2, 5, 9] and ids.dtype == np.int32
    assert places_of(ids, 12).tolist() == [NONE, NONE, 0, NONE, NONE, 1, NONE, NONE, NONE, 2, NONE, NONE]
    assert draft_ids(np.array([3]), 12, 50).tolist() == list(range(12))


def scripts(count: int) -> list[Script]:
    draw = random.Random(1)
    heads = [tuple(draw.randrange(10, VOCABULARY) for _ in range(2 + number)) for number in range(count)]
    return [
        Script("kind", (Given(head), Written(5, 1.0, False), Given((END, 11)), Written(9, 0.0, True)))
        for head in heads
    ]


def test_shards_hold_what_the_target_wrote_and_thought(target, tmp_path, monkeypatch):
    """In windows of 8 rows; the hidden states of each are those of the whole text up to it."""
    monkeypatch.setattr(capturing, "WINDOW", 8)
    monkeypatch.setattr(capturing, "SHARD_ROWS", 40)
    source = Source("random", target, None, torch.float32)
    capture(source, writer_of(source, iter(scripts(7)), 3, 40, seed=1), tmp_path)
    paths = windows.shards(tmp_path)
    found = [each for path in paths for each in read_shard(path).windows]
    assert len(paths) > 1 and read_shard(paths[0]).taps == (0, 1, 2, 3)
    assert sum(map(windows.rows, paths)) == sum(map(len, found))
    assert sum(map(windows.written, paths)) == len(windows.own_ids(paths)) == sum(w.own.sum() for w in found)
    texts: list[list[Window]] = []
    for each in found:
        if not each.first:
            texts.append([])
        assert each.first == sum(map(len, texts[-1])) and len(each) <= 8
        texts[-1].append(each)
    assert len(texts) == 7
    for pieces in texts:
        check_text(target, pieces)


def check_text(target: LlamaForCausalLM, pieces: list[Window]) -> None:
    ids, own, hidden, top_ids, log_probs = (
        np.concatenate([getattr(piece, name) for piece in pieces]) for name in windows.PACKED
    )
    assert np.allclose(hidden, states_of(target, ids.tolist()), atol=1e-2)
    thought = target(torch.tensor([ids.tolist()])).logits[0].log_softmax(-1).numpy()
    for row in np.flatnonzero(own) - 1:
        assert np.allclose(thought[row][top_ids[row]], log_probs[row], atol=1e-2)
        assert np.allclose(np.sort(thought[row])[::-1][:TOP], log_probs[row], atol=1e-2)
    assert (ids[-4:] == top_ids[-5:-1, 0]).all()  # the answer is greedy
    assert np.isneginf(log_probs[~np.append(own[1:], False)]).all()


def test_a_capture_goes_on_behind_its_last_shard(target, tmp_path, monkeypatch):
    monkeypatch.setattr(capturing, "SHARD_ROWS", 40)
    source = Source("random", target, None, torch.float32)
    held = []
    for asked in (30, 30, 100):
        capture(source, writer_of(source, itertools.cycle(scripts(7)), 3, 40, asked), tmp_path, asked)
        held.append(windows.shards(tmp_path))
        assert sum(map(windows.written, held[-1])) >= asked
    assert held[0] == held[1] == held[2][: len(held[0])] and len(held[2]) > len(held[0])


@pytest.mark.parametrize(("kind", "loss", "length"), [("specformer", "lk", 4), ("ctc", "ctc", 6)])
def test_a_head_learns_what_comes_next(target, tmp_path, kind, loss, length):
    """From two rows behind its own on, in the right order: told by the cycle, and not by what a batch says."""
    pupil, held = pupil_of(target, kind, length), heldout(target, kind)
    assert pupil.head.shape.taps == ((0, 1, 2, 3) if kind == "specformer" else (3,))
    plan = Plan(loss, epochs=40, read=64, starts=16, rate=1e-2, warming=10, measure_steps=60)
    Trainer(pupil, saved(target, tmp_path), held, tmp_path, plan).run()
    rows = np.arange(2, 20)
    wanted = [around(2 + row + 2, LENGTH) for row in rows.tolist()]
    found = drafts(pupil, held[0], rows)
    assert np.mean([draft[:LENGTH] == text for draft, text in zip(found, wanted)]) > 0.95
    assert tokens_per_step(pupil, held)["chain"] > 4.5
