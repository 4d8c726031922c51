"""How far the draft's distribution is from the target's, of which the most likely tokens are known."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

NEGATIVES = 2048  # tokens drawn among those that no position of a batch has among its most likely ones


@dataclass(frozen=True)
class Aims:
    """What the target thinks at N positions: its TOP most likely tokens."""

    ids: Tensor  # [N, TOP]
    log_probs: Tensor  # [N, TOP], float32
    features: Tensor  # [N, size], float32: its hidden state after the last norm


class Losses(NamedTuple):
    """Means over positions."""

    divergence: Tensor  # KL of the draft's distribution from the target's
    variation: Tensor  # total variation between them
    distance: Tensor  # squared, of the hidden states, relative to the target's


def losses(hidden: Tensor, embedding: Tensor, aims: Aims, generator: torch.Generator) -> Losses:
    """At the N positions of `hidden` [N, size].

    What the target does not count among its most likely tokens is one outcome, "another". The softmax goes over the
    tokens that any position has among its most likely ones, and over a sample of all others that stands for them.
    """
    divergence, variation = apart(hidden, embedding, aims, generator)
    distance = (hidden - aims.features).square().sum() / aims.features.square().sum()
    return Losses(divergence, variation, distance)


def apart(hidden: Tensor, embedding: Tensor, aims: Aims, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Divergence and variation, see `Losses`; the features of `aims` are not read."""
    candidates = _candidates_of(aims.ids, len(embedding), generator)
    logits = linear(hidden, embedding[candidates.ids]).float() + candidates.log_shares
    log_probs = logits.log_softmax(-1).gather(1, candidates.places[aims.ids])  # [N, TOP]
    wanted = aims.log_probs.exp()
    rest, own_rest = _rest_of(wanted), _rest_of(log_probs.exp())
    known = (wanted * (aims.log_probs - log_probs)).sum(-1)
    divergence = known + rest * (rest.log() - own_rest.log())
    variation = 1 - torch.minimum(wanted, log_probs.exp()).sum(-1) - torch.minimum(rest, own_rest)
    return divergence.mean(), variation.mean()


class _Candidates(NamedTuple):
    """Tokens that the softmax goes over."""

    ids: Tensor  # [C]
    places: Tensor  # [vocabulary]: where an id stands among them
    log_shares: Tensor  # [C]: log of the number of tokens that each one stands for


def _candidates_of(ids: Tensor, vocabulary: int, generator: torch.Generator) -> _Candidates:
    likely = torch.zeros(vocabulary, dtype=torch.bool)
    likely[ids.flatten()] = True
    named, others = likely.nonzero()[:, 0], (~likely).nonzero()[:, 0]
    drawn = others[torch.randperm(len(others), generator=generator)[:NEGATIVES]]
    places = torch.zeros(vocabulary, dtype=torch.long)
    places[named] = torch.arange(len(named))
    shares = torch.cat([torch.ones(len(named)), torch.full([len(drawn)], len(others) / max(1, len(drawn)))])
    return _Candidates(torch.cat([named, drawn]), places, shares.log())


def _rest_of(probs: Tensor) -> Tensor:
    """What the TOP leave, never 0."""
    return (1 - probs.sum(-1)).clamp_min(1e-4)
