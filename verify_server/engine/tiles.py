"""An output layer that computes its rows in tiles."""

import torch
from torch import Tensor, nn


class TiledLinear(nn.Module):
    """A linear layer by tiles of at most `rows` rows: so few shapes are computed that all were tried at load."""

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.linear, self.rows = linear, rows

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """[1, n, in] -> [1, n, out]."""
        if inputs.shape[1] <= self.rows:
            return self.linear(inputs)
        return torch.cat([self.linear(tile) for tile in inputs.split(self.rows, dim=1)], dim=1)
