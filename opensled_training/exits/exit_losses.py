"""What the layer behind an exit is trained on (arXiv 2510.22641): three terms, each with a weight.

The paper names them without their weights and without the form of what is imitated; both are ours: weights of 1, and
the mean of what the final norm makes of the last three layers' outputs. The layer's states are held against that behind
the final norm as well; before it they learn the same (on tiny, two layers: 4.33 tokens a round against 4.34).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, linear

from opensled_training.distil.objective import candidates_of, rest_of
from opensled_training.exits.config import Weights

LEAST = 1e-9  # of a probability whose logarithm is taken


class Terms(NamedTuple):
    """See `Weights`; means over rows."""

    cosine: Tensor
    divergence: Tensor
    tokens: Tensor

    def total(self, weights: Weights) -> Tensor:
        """The sum that is trained on; a term with weight 0 is not in it."""
        return torch.stack([weight * term for weight, term in zip(weights, self) if weight]).sum()


class Wanted(NamedTuple):
    """What is known of the target at N rows."""

    fused: Tensor  # [N, d]: what the layer imitates, see `fused`
    ids: Tensor  # [N, TOP]: the likeliest tokens that follow
    probs: Tensor  # [N, TOP]: theirs
    tokens: Tensor  # [N]: the one that the target wrote


def fused(normed: Tensor) -> Tensor:
    """Of the last layers' outputs, each behind the final norm: [N, layers, d] to [N, d]."""
    return normed.mean(1)


def terms(states: Tensor, output: Tensor, wanted: Wanted, generator: torch.Generator) -> Terms:
    """Of `states` [N, d] behind the final norm; `output` [V, d].

    The softmax goes over the ids that any row has among its likeliest ones, and a sample that stands for all others.
    """
    asked = torch.cat([wanted.ids, wanted.tokens[:, None]], dim=1)
    candidates = candidates_of(asked, len(output), generator)
    logits = linear(states, output[candidates.ids]).float() + candidates.log_shares
    log_probs = logits.log_softmax(-1).gather(1, candidates.places[asked])
    known, written = log_probs[:, :-1], log_probs[:, -1]
    rest, own_rest = rest_of(wanted.probs), rest_of(known.exp())
    apart = (wanted.probs * (wanted.probs.clamp_min(LEAST).log() - known)).sum(-1)
    apart = apart + rest * (rest.log() - own_rest.log())
    far = 1 - cosine_similarity(states.float(), wanted.fused.float(), dim=-1)
    return Terms(far.mean(), apart.mean(), -written.mean())
