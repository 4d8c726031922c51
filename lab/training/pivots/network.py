"""The classifier in torch, and its training. It computes what `PivotClassifier.chances` computes in numpy."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from lab.training.pivots.labels import Labels
from verify_server.rules.pivots import FACTS, MIN_PROB, SMALLEST, WEIGHT_NAMES

STATE_WIDTH, FACTS_WIDTH, INNER_WIDTH = 64, 16, 128  # PAD's
RATE, DECAY = 1e-3, 0.05
MAX_STEPS, PATIENCE = 1000, 50  # passes over all, and so many without a better one end it
DROPOUT = 0.2  # of the states' features, against learning tasks by heart


@dataclass(frozen=True)
class Batch:
    """What the network reads of n mismatches, and what they are."""

    states: Tensor  # [n, size]
    facts: Tensor  # [n, 2]: entropy in nats and log-probability
    pivots: Tensor  # [n]: 1 for a pivot, else 0


class PivotNetwork(nn.Module):
    """Parameters are named as in `PivotClassifier`. `size`: of the states."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.state = _matrix(size, STATE_WIDTH)
        self.facts = _matrix(FACTS, FACTS_WIDTH)
        self.inner = _matrix(STATE_WIDTH + FACTS_WIDTH, INNER_WIDTH)
        self.inner_bias = nn.Parameter(torch.zeros(INNER_WIDTH))
        self.outer = nn.Parameter(torch.randn(INNER_WIDTH) * INNER_WIDTH**-0.5)
        self.outer_bias = nn.Parameter(torch.zeros(1))
        self._dropout = nn.Dropout(DROPOUT)

    def forward(self, states: Tensor, facts: Tensor) -> Tensor:
        """[n] logits of being a pivot."""
        norms = states.square().mean(1, keepdim=True).sqrt().clamp_min(SMALLEST)
        read = torch.cat([self._dropout(states / norms @ self.state), facts @ self.facts], dim=1)
        return torch.relu(read @ self.inner + self.inner_bias) @ self.outer + self.outer_bias

    def weights(self) -> dict[str, np.ndarray]:
        """For `PivotClassifier`; copies."""
        own = dict(self.named_parameters())
        return {name: own[name].detach().numpy().copy() for name in WEIGHT_NAMES}

    @torch.no_grad()
    def chances(self, batch: Batch) -> np.ndarray:
        """[n]"""
        found: np.ndarray = self.eval()(batch.states, batch.facts).sigmoid().numpy()
        return found


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) * rows**-0.5)


def batch_of(labels: Labels, chosen: np.ndarray) -> Batch:
    """The mismatches at `chosen`, bool [n] or indices."""
    facts = np.stack([labels.entropies, np.log(np.maximum(MIN_PROB, labels.probs))], axis=1)
    return Batch(
        torch.from_numpy(labels.states[chosen]),
        torch.from_numpy(facts[chosen].astype(np.float32)),
        torch.from_numpy(labels.pivots[chosen].astype(np.float32)),
    )


def fit(learned: Batch, watched: Batch, seed: int) -> PivotNetwork:
    """Trained on `learned`; the weights are those with the least loss on `watched`."""
    torch.manual_seed(seed)
    network = PivotNetwork(learned.states.shape[1])
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
    best, least, since = _weights(network), float("inf"), 0
    for _ in range(MAX_STEPS):
        optimizer.zero_grad()
        _loss(network.train(), learned).backward()
        optimizer.step()
        with torch.no_grad():
            loss = float(_loss(network.eval(), watched))
        since = 0 if loss < least else since + 1
        if loss < least:
            best, least = _weights(network), loss
        if since >= PATIENCE:
            break
    network.load_state_dict(best)
    return network


def _loss(network: PivotNetwork, batch: Batch) -> Tensor:
    """Cross-entropy in which pivots and others weigh alike, however many there are."""
    pivots = batch.pivots
    weights = torch.where(pivots > 0, 0.5 / pivots.sum().clamp_min(1), 0.5 / (1 - pivots).sum().clamp_min(1))
    logits = network(batch.states, batch.facts)
    return binary_cross_entropy_with_logits(logits, pivots, weights, reduction="sum")


def _weights(network: PivotNetwork) -> Mapping[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in network.state_dict().items()}
