"""Linear layers that compute their rows in tiles."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from verify_server.engine.packing import Geometry


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


def tile(network: PreTrainedModel, geometry: Geometry) -> None:
    """Puts the network's linear layers into the tiles of `geometry`; see `untile`."""
    head = network.get_output_embeddings()
    for name, module in list(network.named_modules()):
        rows = geometry.head_rows if module is head else geometry.tile
        if isinstance(module, nn.Linear) and rows:
            network.set_submodule(name, TiledLinear(module, rows))


def untile(network: PreTrainedModel) -> None:
    for name, module in list(network.named_modules()):
        if isinstance(module, TiledLinear):
            network.set_submodule(name, module.linear)
