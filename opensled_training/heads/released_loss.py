"""What the released CTC-drafter learns: the target's next hidden state, and a little of its thoughts and of CTC.

As train/main.py of commit cf2a35c of github.com/ZhuofanWen/CTC-drafter has it, but of the rows that drafts start from,
which are as many for every head. The frames of a row are the predictions of six neighbouring rows, each behind the true
text: no frame is drafted, and what follows a frame is known to it.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor
from torch.nn import functional

from opensled_training.heads.batches import Aims, Batch
from opensled_training.heads.losses import cross_entropy

FRAMES, LABEL = 6, 3
THOUGHTS, CTC = 0.1, 0.01  # weights beside that of the hidden states


def released_loss(predicted: Tensor, log_probs: Tensor, batch: Batch, blank: int) -> Tensor:
    """`predicted` [n, d] hidden states behind all rows, and `log_probs` [n, V] of the tokens that they decide."""
    starts = batch.starts
    states = functional.smooth_l1_loss(predicted[starts], batch.hidden[starts + 1, 0])
    thoughts = cross_entropy(log_probs[starts, None], _next(batch.aims))
    return states + THOUGHTS * thoughts + CTC * _ctc(log_probs, batch, blank)


def _next(aims: Aims) -> Aims:
    """Of the first token of each draft."""
    return Aims(*(getattr(aims, field.name)[:, :1] for field in fields(Aims)))


def _ctc(log_probs: Tensor, batch: Batch, blank: int) -> Tensor:
    labels, asked = labels_of(batch.aims, blank)
    if not asked.any():
        return log_probs.sum() * 0
    frames = log_probs[batch.starts[asked, None] + torch.arange(FRAMES)]
    count = len(frames)
    return functional.ctc_loss(
        frames.transpose(0, 1),
        labels[asked],
        torch.full((count,), FRAMES),
        torch.full((count,), LABEL),
        blank=blank,
    )


def labels_of(aims: Aims, blank: int) -> tuple[Tensor, Tensor]:
    """[B, LABEL]: what the target thought likeliest behind the first LABEL frames; and [B], whether there are all.

    Asked are rows behind whose FRAMES frames all tokens are the target's own, and can be drafted.
    """
    labels = aims.top[:, :LABEL, 0]
    drafted = (labels >= 0) & (labels != blank)
    return labels, aims.valid[:, :FRAMES].all(1) & drafted.all(1)
