"""Losses of draft heads: each against a few lines that say the same, and none breaks at extreme logits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from lab.training.heads import config
from lab.training.heads.batches import Aims
from lab.training.heads.draft_vocabulary import NONE
from lab.training.heads.losses import LABEL, LEAST, LOSSES
from lab.training.heads.windows import TOP
from tests.test_collapse import collapse

TOKENS = 3  # of the draft vocabulary; the blank is the id behind them


def log_probs(count: int, length: int, columns: int, seed: int = 1, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, length, columns, generator=generator, dtype=torch.float64) * spread
    return logits.log_softmax(-1).requires_grad_()


def labelled(tokens: Sequence[Sequence[int]], valid: Sequence[Sequence[bool]] | None = None) -> Aims:
    """What the target wrote, and nothing of what it thought."""
    ids = torch.tensor(tokens)
    written = torch.ones_like(ids, dtype=torch.bool) if valid is None else torch.tensor(valid)
    nothing = torch.zeros(*ids.shape, TOP)
    return Aims(ids, ids.roll(1, 1), written, nothing.long() + NONE, nothing)


def thought(count: int, length: int, columns: int, outside: float = 0.0, seed: int = 2) -> Aims:
    """A target's distributions over some ids of a draft vocabulary; `outside` of it is not in that."""
    rng = np.random.default_rng(seed)
    top = np.full((count, length, TOP), NONE)
    probs = np.zeros((count, length, TOP), np.float32)
    for row, place in itertools.product(range(count), range(length)):
        top[row, place, 1 : columns + 1] = rng.permutation(columns)
        probs[row, place, 1 : columns + 1] = rng.dirichlet(np.ones(columns)) * (1 - outside)
    tokens = torch.from_numpy(top[..., 1])
    valid = torch.ones(count, length, dtype=torch.bool)
    return Aims(tokens, tokens.roll(1, 1), valid, torch.from_numpy(top), torch.from_numpy(probs))


def overlaps(found: Tensor, aims: Aims) -> np.ndarray:
    """Sum of min(p, q) of each place, over a whole vocabulary."""
    head = found.detach().exp().numpy()
    target = np.zeros_like(head)
    for place in np.argwhere(aims.top.numpy() != NONE):
        row, column, rank = (int(each) for each in place)
        target[row, column, aims.top[row, column, rank]] = aims.probs[row, column, rank]
    return np.minimum(head, target).sum(-1)


def by_alignments(frames: np.ndarray, label: list[int]) -> float:
    """-log of the sum over all paths that say the label."""
    paths = itertools.product(range(frames.shape[1]), repeat=len(frames))
    written = [path for path in paths if collapse(path, frames.shape[1] - 1) == label]
    scores = [sum(float(frames[frame, id]) for frame, id in enumerate(path)) for path in written]
    return -float(np.logaddexp.reduce(scores))


@pytest.mark.parametrize("label", [[0, 1], [2, 0], [1, 1]])
def test_ctc_is_the_sum_over_all_alignments(label: list[int]) -> None:
    """Four frames; what stands behind the label cannot be drafted."""
    frames = log_probs(1, 4, TOKENS + 1)
    found = LOSSES["ctc"](frames, labelled([[*label, NONE, 0]]))
    assert found.item() == pytest.approx(by_alignments(frames[0].detach().numpy(), label) / 2, abs=1e-5)


def test_ctc_takes_as_many_tokens_as_the_target_wrote() -> None:
    frames = log_probs(1, 8, TOKENS + 1)
    text = [0, 1, 2, 0, 1, 2, 0, 1]
    for count in (1, 3, 8):
        valid = [[place < count for place in range(8)]]
        label = text[: min(count, LABEL)]
        wanted = by_alignments(frames[0].detach().numpy(), label) / len(label)
        assert LOSSES["ctc"](frames, labelled([text], valid)).item() == pytest.approx(wanted, abs=1e-5)


def test_a_label_ends_before_a_token_that_cannot_be_drafted() -> None:
    """Not behind it: [0, NONE, 1, 2] is [0], not [0, 1, 2]."""
    frames = log_probs(1, 4, TOKENS + 1)
    found, short = (
        LOSSES["ctc"](frames, labelled([ids])).item() for ids in ([0, NONE, 1, 2], [0, NONE, NONE, NONE])
    )
    assert found == short == pytest.approx(by_alignments(frames[0].detach().numpy(), [0]), abs=1e-5)


@pytest.mark.parametrize("infeasible", [[1, 1, 1, 0], [0, 0, 1, 2], [2, 2, 2, 2]])
def test_a_label_that_the_frames_cannot_write_counts_nothing(infeasible: list[int]) -> None:
    """Beside another one it changes neither the loss nor the gradient of that, and alone it is zero."""
    frames = log_probs(2, 4, TOKENS + 1)
    alone = LOSSES["ctc"](frames[:1], labelled([[0, 1, NONE, NONE]]))
    both = LOSSES["ctc"](frames, labelled([[0, 1, NONE, NONE], infeasible]))
    assert both.item() == pytest.approx(alone.item())
    [gradient] = torch.autograd.grad(both, frames)
    assert gradient[0].abs().sum() > 0 and gradient[1].tolist() == torch.zeros(4, TOKENS + 1).tolist()
    nothing = LOSSES["ctc"](frames[1:], labelled([infeasible]))
    assert nothing.item() == 0 and torch.autograd.grad(nothing, frames)[0].eq(0).all()


@pytest.mark.parametrize("behind", [NONE, 0, 1])
def test_a_label_that_just_fits_counts(behind: int) -> None:
    """Repeats behind its end are none."""
    frames = log_probs(1, 4, TOKENS + 1)
    wanted = by_alignments(frames[0].detach().numpy(), [0, 0, 1]) / 3
    found = LOSSES["ctc"](frames, labelled([[0, 0, 1, behind]], [[True, True, True, False]]))
    assert found.item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("outside", [0.0, 0.4])
def test_lk_and_tvd_are_those_of_whole_distributions(outside: float) -> None:
    """What is outside of the draft vocabulary is not covered: even a perfect head cannot reach it."""
    found, aims = log_probs(3, 4, 6), thought(3, 4, 6, outside)
    covered = overlaps(found, aims)
    assert LOSSES["lk"](found, aims).item() == pytest.approx(float(-np.log(covered).mean()), rel=1e-5)
    assert LOSSES["tvd"](found, aims).item() == pytest.approx(float(1 - covered.mean()), rel=1e-5)
    perfect = torch.zeros(3, 4, 6).scatter(-1, aims.top[..., 1:7], aims.probs[..., 1:7] / (1 - outside)).log()
    assert LOSSES["tvd"](perfect, aims).item() == pytest.approx(outside, abs=1e-5)
    assert LOSSES["lk"](perfect, aims).item() == pytest.approx(-math.log(1 - outside), abs=1e-5)


def test_cross_entropy_is_under_the_targets_distribution() -> None:
    """As far as that can be drafted: the rest is no reason to be unsure among what can be."""
    found, aims = log_probs(2, 3, 5), thought(2, 3, 5, outside=0.3)
    head = found.detach().gather(-1, aims.top[..., 1:6]).numpy()
    target = aims.probs[..., 1:6].numpy() / 0.7
    assert LOSSES["ce"](found, aims).item() == pytest.approx(float(-(target * head).sum(-1).mean()), rel=1e-5)


def test_hard_is_of_the_written_tokens() -> None:
    """Those that can be drafted, and that the target wrote itself."""
    found = log_probs(2, 3, 5)
    aims = labelled([[1, NONE, 2], [4, 0, 3]], [[True, True, True], [True, False, False]])
    wanted = -(found[0, 0, 1] + found[0, 2, 2] + found[1, 0, 4]) / 3
    assert LOSSES["hard"](found, aims).item() == pytest.approx(wanted.item())


@pytest.mark.parametrize("name", ["lk", "tvd", "ce"])
def test_a_place_of_which_nothing_can_be_drafted_is_not_asked(name: str) -> None:
    found, aims = log_probs(2, 3, 5), thought(2, 3, 5)
    aims.probs[1] = 0
    part = Aims(*(getattr(aims, field)[:1] for field in Aims.__dataclass_fields__))
    assert LOSSES[name](found, aims).item() == pytest.approx(LOSSES[name](found[:1], part).item())


@pytest.mark.parametrize("name", LOSSES)
def test_where_nothing_is_asked_the_loss_is_nothing(name: str) -> None:
    logits = torch.randn(2, 5, 4, requires_grad=True)
    loss = LOSSES[name](logits.log_softmax(-1), labelled([[NONE] * 5] * 2))
    loss.backward()
    assert loss.item() == 0 and logits.grad is not None and logits.grad.eq(0).all()


@pytest.mark.parametrize("extreme", [0.0, 100.0, 1e4])
@pytest.mark.parametrize("name", LOSSES)
def test_extreme_logits_leave_the_gradient_finite(name: str, extreme: float) -> None:
    """Both where the head is certain of the right tokens, and where it is certain of others."""
    generator = torch.Generator().manual_seed(5)
    aims = thought(4, 6, 5, outside=0.2)
    for own in (torch.randn(4, 6, 5, generator=generator), -torch.nn.functional.one_hot(aims.tokens, 5)):
        logits = (own.float() * extreme).requires_grad_()
        loss = LOSSES[name](logits.log_softmax(-1), aims)
        loss.backward()
        assert math.isfinite(loss.item()) and loss.item() >= 0
        assert logits.grad is not None and logits.grad.isfinite().all()


def test_a_head_that_gives_nothing_loses_a_bounded_amount() -> None:
    """The logarithm of the LK loss ends at LEAST: one lost place must not outweigh all others."""
    aims = thought(1, 1, 2)
    aims.top[..., 2] = NONE
    aims.probs[..., 2] = 0
    logits = torch.zeros(1, 1, 2).scatter(-1, aims.top[..., 1:2], -1e4)
    assert LOSSES["lk"](logits.log_softmax(-1), aims).item() == pytest.approx(-math.log(LEAST))


def test_the_command_names_all_losses() -> None:
    """It lists them without importing torch."""
    assert set(config.LOSSES) == set(LOSSES)
