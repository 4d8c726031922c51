"""The baseline `ctc-released`: its layer, what it learns, how it drafts, and that it leaves a curve and no head.

Run: pytest tests/test_head_released.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu, smooth_l1_loss

from opensled.errors import NotFound, UsageError
from opensled_training.heads import command
from opensled_training.heads.batches import Batch
from opensled_training.heads.capture import Source
from opensled_training.heads.config import RELEASED, TrainHeadConfig
from opensled_training.heads.draft_vocabulary import NONE
from opensled_training.heads.heldout import agreed, tokens_per_step
from opensled_training.heads.released import ReleasedPupil, new_released
from opensled_training.heads.released_loss import labels_of, released_loss
from opensled_training.heads.trainer import Plan, Trainer
from opensled_training.heads.windows import Shard, Window, save_shard
from tests.test_head_losses import by_alignments
from tests.test_head_training import CYCLE, around, saved, window
from tests.test_head_training import target as target
from verify_server.heads.collapse import ROOT
from verify_server.heads.head_file import load
from verify_server.heads.layers import rotated

STEPS = 4
BLANK = 0  # no text has it, so it is the first of the rarest ids
PLACES = {id: place for place, id in enumerate(sorted(CYCLE), 1)}  # in the draft vocabulary, behind the blank


@pytest.fixture
def pupil(target) -> ReleasedPupil:
    """Untrained; each of its parts counts."""
    torch.manual_seed(4)
    own = new_released(target, np.array(CYCLE), np.array(CYCLE), STEPS, torch.float32)
    for weight in own.head.parameters():
        torch.nn.init.normal_(weight, std=0.5 if weight.ndim < 2 else 1.5 * weight.shape[-1] ** -0.5)
    return own


def last_states(held: Window) -> Window:
    return replace(held, hidden=held.hidden[:, -1:])


def drafting(pupil: ReleasedPupil, windows: Sequence[Window], rows: Sequence[Sequence[int]]) -> Batch:
    return pupil.batch(list(map(last_states, windows)), [np.array(own) for own in rows])


def decoder_layer(pupil: ReleasedPupil, hidden: Tensor, ids: Sequence[int]) -> Tensor:
    """What the code of the authors computes for one text, of hidden states [n, d] and the token behind each."""
    head, places = pupil.head, torch.arange(len(ids))
    inputs = head.joined(torch.cat([pupil.parts.embedded(torch.tensor(ids)), hidden], dim=-1))
    keys, values = (linear(inputs).unflatten(-1, (2, 8)) for linear in (head.context.key, head.context.value))
    queries = rotated(head.queries.query(inputs).unflatten(-1, (4, 8)), places, 10_000)
    keys = rotated(keys, places, 10_000).repeat_interleave(2, 1)
    parts = (part.transpose(0, 1) for part in (queries, keys, values.repeat_interleave(2, 1)))
    seen = scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1).flatten(1)
    states = inputs + head.queries.out(seen)
    normed = head.inner_norm(states)
    return states + head.inner.down(silu(head.inner.gate(normed)) * head.inner.up(normed))


@torch.no_grad()
def test_shapes_and_the_blank(target, pupil) -> None:
    texts = [window(target, around(0)), window(target, around(2, 12))]
    batch = drafting(pupil, texts, [[3, 9, 20], [1]])
    assert pupil.parts.draft_ids.tolist() == [BLANK, *sorted(CYCLE)] and pupil.blank == 0
    assert pupil.predicted(batch, batch.hidden[:, 0]).shape == (44, 32)
    steps = pupil.steps(batch)
    assert steps.shape == (4, STEPS, 8) and torch.allclose(steps.exp().sum(-1), torch.ones(4, STEPS))
    assert {way: len(tries) for way, tries in pupil.drafts(batch).items()} == {"chain": 4, "tree": 4}
    assert batch.aims.tokens.shape == (4, 6)  # as many as a label has frames
    other = new_released(target, np.array([0, 3, 1, 0, 4]), np.array([0, 3]), STEPS, torch.float32)
    assert other.parts.draft_ids.tolist() == [0, 2, 3] and other.blank == 1


@torch.no_grad()
def test_each_row_is_the_layer_over_states_and_the_tokens_behind_them(target, pupil) -> None:
    texts = [around(0, 20), around(3, 14)]
    packed = [window(target, text) for text in texts]
    batch = drafting(pupil, packed, [[2], [5]])
    found = pupil.predicted(batch, batch.hidden[:, 0]).split(batch.sizes)
    for own, text, states in zip(found, texts, batch.hidden[:, 0].split(batch.sizes)):
        assert torch.allclose(own[:-1], decoder_layer(pupil, states[:-1], text[1:]), atol=1e-4)


@torch.no_grad()
def test_attention_is_causal(target, pupil) -> None:
    batch = drafting(pupil, [window(target, around(0, 20)), window(target, around(3, 14))], [[2], [5]])
    found = pupil.predicted(batch, batch.hidden[:, 0])
    for changed in (0, 8, 19):
        other = batch.hidden[:, 0].clone()
        other[changed] += 1
        same = torch.isclose(pupil.predicted(batch, other), found, atol=1e-5).all(1)
        assert same.tolist() == [row < changed or row >= 20 for row in range(34)]


@torch.no_grad()
def test_a_draft_goes_on_behind_its_greedy_token_and_its_own_state(target, pupil) -> None:
    """As if its rows were rows of the text: same layer, positions and attention."""
    text = around(1, 24)
    batch = drafting(pupil, [window(target, text)], [[4, 15]])
    for row, steps in zip([4, 15], pupil.steps(batch)):
        hidden, ids = batch.hidden[: row + 1, 0], text[1 : row + 2]
        for step in range(STEPS):
            state = decoder_layer(pupil, hidden, ids)[-1:]
            wanted = pupil.parts.logits(state)[0].log_softmax(-1)
            assert torch.allclose(steps[step], wanted, atol=1e-3)
            hidden, ids = torch.cat([hidden, state]), [*ids, int(pupil.parts.draft_ids[wanted.argmax()])]


def test_what_is_learned_from_has_noise(target, pupil, monkeypatch) -> None:
    batch, seen = drafting(pupil, [window(target, around(0))], [[3, 9]]), []
    predicted = ReleasedPupil.predicted
    monkeypatch.setattr(ReleasedPupil, "predicted", lambda *words: seen.append(words[2]) or predicted(*words))
    assert pupil.loss(batch, "released").item() > 0
    noise = (seen[0] - batch.hidden[:, 0]).abs()
    assert 0.04 < noise.mean() < 0.06 and 0.09 < noise.max() <= 0.1


def test_a_label_is_what_the_target_thought_behind_the_first_frames(target, pupil) -> None:
    """Not what it wrote, if that is something else; and only where six frames are its own, and can be drafted."""
    text = window(target, around(0, 16))
    text.top_ids[7, 0] = CYCLE[2]  # it thought so after row 7, and wrote CYCLE[1]
    text.own[12] = False
    rows = [0, 1, 4, 5, 6, 9]
    labels, asked = labels_of(drafting(pupil, [text], [rows]).aims, pupil.blank)
    written = [PLACES[id] for id in text.ids.tolist()]
    assert labels[0].tolist() == written[2:5] and labels[2].tolist() == [*written[6:8], PLACES[CYCLE[2]]]
    assert asked.tolist() == [row + 7 < 12 for row in rows]
    text.top_ids[4, 0] = BLANK
    assert labels_of(drafting(pupil, [text], [[0, 1, 4]]).aims, pupil.blank)[1].tolist() == [
        True,
        False,
        True,
    ]


def test_the_loss_by_hand(target, pupil) -> None:
    """CTC is the sum over all alignments of six neighbouring rows; the last of the three rows has fewer."""
    one, other = sorted(CYCLE)[:2]
    small = replace(pupil, places=np.where(pupil.places > 2, NONE, pupil.places))
    ids = [one, other, other, one, other, one, one, other, other, one, other, one, one]
    batch = small.batch([last_states(window(target, ids))], [np.array([1, 4, 10])])
    predicted, log_probs = torch.randn(len(ids), 32), torch.randn(len(ids), 3).log_softmax(-1)
    states = smooth_l1_loss(predicted[[1, 4, 10]], batch.hidden[[2, 5, 11], 0])
    thoughts = -(log_probs[1, 1] + log_probs[4, 1] + log_probs[10, 1]) / 3  # of ids 3, 6 and 12
    frames = log_probs.roll(-1, 1).numpy().astype(float)  # with the blank behind the two ids
    ctc = [by_alignments(frames[1:7], [0, 1, 0]), by_alignments(frames[4:10], [0, 1, 1])]
    wanted = states + 0.1 * thoughts + 0.01 * np.mean(ctc) / 3
    assert released_loss(predicted, log_probs, batch, BLANK).item() == pytest.approx(wanted.item(), abs=1e-5)


def test_without_six_frames_there_is_no_ctc(target, pupil) -> None:
    batch = drafting(pupil, [window(target, around(0, 8))], [[2, 5]])
    frames = torch.randn(8, 8).requires_grad_()
    released_loss(torch.randn(8, 32), frames.log_softmax(-1), batch, BLANK).backward()
    assert frames.grad is not None and frames.grad.isfinite().all()
    assert frames.grad.abs().sum(1).gt(0).tolist() == [row in (2, 5) for row in range(8)]


def certain(*path: int, second: int | None = None) -> Tensor:
    """Log-probabilities [STEPS, 8] of this path; with another second token, less likely, and of nothing else."""
    chances = torch.zeros(STEPS, 8)
    chances[torch.arange(STEPS), torch.tensor(path)] = 0.6
    if second is not None:
        chances[1, second] = 0.3
    return chances.log()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((2, 2, 1, 3), [2, 1, 3]),
        ((2, 0, 2, 1), [2, 2, 1]),
        ((0, 1, 1, 1), [1]),
        ((5, 4, 3, 2), [5, 4, 3, 2]),
        ((0, 0, 0, 0), []),
    ],
)
def test_a_collapsed_token_stands_where_it_would_in_the_text(
    pupil, monkeypatch, path: tuple[int, ...], text: list[int]
) -> None:
    """Behind a repeat one place before that of its step, as the child of the token that it follows."""
    monkeypatch.setattr(ReleasedPupil, "steps", lambda *_: certain(*path)[None])
    drafts = pupil.drafts(None)
    for [draft] in drafts.values():
        assert draft.ids == text and draft.parents == list(range(ROOT, len(text) - 1))
        assert agreed(draft, [*text, 7]) == len(text)


def test_a_tree_has_the_other_likely_paths(pupil, monkeypatch) -> None:
    """[2, 2, 1, 3] and [2, 5, 1, 3]: the second has no repeat, so it is one token longer."""
    monkeypatch.setattr(ReleasedPupil, "steps", lambda *_: certain(2, 2, 1, 3, second=5)[None])
    [tree] = pupil.drafts(None)["tree"]
    assert tree.ids == [2, 1, 3, 5, 1, 3] and tree.parents == [ROOT, 0, 1, 0, 3, 4]
    both, one, other = (np.log(0.6**3 * chance) for chance in (0.9, 0.6, 0.3))
    assert tree.scores == pytest.approx([both, one, one, other, other, other])


def test_the_walk_by_hand(target, pupil, monkeypatch) -> None:
    """All its drafts are [2 1 3], and as a tree [2 5 1 3], too. The chain takes 1, 0, 0, 3 and 1 tokens of the text,
    from rows 0, 2, 3, 4 and 8; the tree 4, 0, 0, 0 and 2, from rows 0, 5, 6, 7 and 8.
    """
    always = certain(2, 2, 1, 3, second=5)
    monkeypatch.setattr(ReleasedPupil, "steps", lambda _, batch: always.expand(len(batch.starts), -1, -1))
    text = [sorted(CYCLE)[place - 1] for place in (7, 7, 2, 5, 1, 3, 2, 1, 3, 6, 2, 5)]
    found = tokens_per_step(pupil, [last_states(window(target, text))])
    assert found == {"chain": 10 / 5, "tree": 11 / 5}


def sure(target, phase: int, count: int) -> Window:
    """Of a target whose last states are the embeddings of what it writes next, so that its output layer is sure."""
    held = window(target, around(phase, count))
    following = torch.tensor(around(phase + 1, count))
    held.hidden[:, -1] = 4 * target.get_input_embeddings()(following).numpy()
    return held


def test_it_learns_a_cycle(target, tmp_path) -> None:
    """All four steps of a draft, behind which the target writes one more token."""
    torch.manual_seed(1)
    own = new_released(target, np.array(CYCLE), np.array(CYCLE), STEPS, torch.float32)
    save_shard(Shard((0, 1, 2, 3), [sure(target, phase, 32) for phase in range(6)]), tmp_path / "0.npz")
    held = [last_states(sure(target, phase, 26)) for phase in (2, 6)]
    plan = Plan("released", epochs=20, read=64, starts=16, rate=1e-2, warming=10, measure_steps=20)
    Trainer(own, [tmp_path / "0.npz"], held, tmp_path, plan).run()
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert curve[0]["chain"] < 2.5 and 4.9 < curve[-1]["chain"] <= curve[-1]["tree"] <= 1 + STEPS


def test_a_training_leaves_its_curve_and_no_head(target, tmp_path, monkeypatch) -> None:
    config = TrainHeadConfig(
        str(tmp_path / "own.gguf"), RELEASED, positions=100, epochs=1, work=str(tmp_path), length=2
    )
    for folder in (command.TEXTS, command.HELDOUT):
        (config.shop / folder).mkdir(parents=True)
        saved(target, config.shop / folder)
    said = command._train(Source("own", target, None, torch.float32), config)
    folder = config.shop / RELEASED
    assert str(folder) in said and "serve" in said and "no head" in said
    assert sorted(path.name for path in folder.iterdir()) == ["curve.jsonl", "head.pt"]
    with pytest.raises(NotFound, match="no draft head"):
        load(folder)


@pytest.mark.parametrize(("name", "value"), [("out", "heads/mine"), ("loss", "lk"), ("markov", 8)])
def test_what_is_for_heads_is_refused(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"--{name}.*baseline"):
        command.train_head(TrainHeadConfig("no such target", RELEASED, **{name: value}))
