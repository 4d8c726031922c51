"""What a head is trained on: how far its drafts are from what the target wrote, and thought.

All take log-probabilities of a draft vocabulary, [B, length, V]. What is outside of it cannot be drafted: it is one
more outcome, to which a head gives nothing.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from lab.training.heads.batches import Aims
from lab.training.heads.draft_vocabulary import NONE

LABEL = 4  # tokens of a label of `ctc`; N frames write them unless len(label) + repeats > N
LEAST = 1e-6  # of a probability whose logarithm is taken

Loss = Callable[[Tensor, Aims], Tensor]


def acceptance(log_probs: Tensor, aims: Aims) -> Tensor:
    """-log sum min(p, q), the LK loss (arXiv 2602.23881): of the chance that a draft token is accepted."""
    overlap, asked = _overlap(log_probs, aims)
    return _mean(-overlap.clamp_min(LEAST).log(), asked)


def variation(log_probs: Tensor, aims: Aims) -> Tensor:
    """Total variation distance between the target's distribution and the head's."""
    overlap, asked = _overlap(log_probs, aims)
    return _mean(1 - overlap, asked)


def cross_entropy(log_probs: Tensor, aims: Aims) -> Tensor:
    """Of the head's distribution under the target's, as far as that can be drafted."""
    known = (aims.probs * _gathered(log_probs, aims)).sum(-1)
    total = aims.probs.sum(-1)
    return _mean(-known / total.clamp_min(LEAST), total > LEAST)


def hard(log_probs: Tensor, aims: Aims) -> Tensor:
    """Cross-entropy of the tokens that the target wrote."""
    found = log_probs.gather(-1, aims.tokens.clamp_min(0)[..., None])[..., 0]
    return _mean(-found, aims.valid & (aims.tokens != NONE))


def ctc(log_probs: Tensor, aims: Aims) -> Tensor:
    """CTC over all frames, whose last id is the blank; the label is the next tokens of the text.

    It ends before the first token that cannot be drafted. Labels that the frames cannot write count nothing.
    """
    labels = aims.tokens[:, :LABEL]
    sizes = ((labels != NONE) & aims.valid[:, :LABEL]).cumprod(1).sum(1)
    asked = (sizes > 0) & (sizes + _repeats(labels, sizes) <= log_probs.shape[1])
    if not asked.any():
        return log_probs.sum() * 0
    frames = log_probs[asked].transpose(0, 1)
    found = functional.ctc_loss(
        frames,
        labels[asked].clamp_min(0),
        torch.full((frames.shape[1],), len(frames)),
        sizes[asked],
        blank=log_probs.shape[-1] - 1,
        reduction="none",
        zero_infinity=True,
    )
    return (found / sizes[asked]).mean()


LOSSES: dict[str, Loss] = {"lk": acceptance, "tvd": variation, "ce": cross_entropy, "hard": hard, "ctc": ctc}


def _repeats(labels: Tensor, sizes: Tensor) -> Tensor:
    """[B]: tokens of labels [B, n] that are the same as the one before; a blank must stand between the two."""
    inside = torch.arange(1, labels.shape[1]) < sizes[:, None]
    return ((labels[:, 1:] == labels[:, :-1]) & inside).sum(1)


def _gathered(log_probs: Tensor, aims: Aims) -> Tensor:
    """[B, length, TOP]."""
    return log_probs.gather(-1, aims.top.clamp_min(0))


def _overlap(log_probs: Tensor, aims: Aims) -> tuple[Tensor, Tensor]:
    """Sum of min(p, q) [B, length], and where anything can be drafted."""
    shared = torch.minimum(aims.probs, _gathered(log_probs, aims).exp())
    return shared.sum(-1), aims.probs.sum(-1) > LEAST


def _mean(values: Tensor, asked: Tensor) -> Tensor:
    return (values * asked).sum() / asked.sum().clamp_min(1)
