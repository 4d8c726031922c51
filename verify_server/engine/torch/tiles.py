"""Linear layers that compute their rows as they were tried at load: as one matrix, in tiles where that was needed."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from verify_server.engine.torch.packing import Geometry


class TiledLinear(nn.Module):
    """A linear layer by tiles of at most `rows` rows, 0 = all at once.

    Its input is one matrix: torch computes some batches of one matrix by other kernels than the matrix.
    """

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self.linear, self.rows = linear, rows

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    def forward(self, inputs: Tensor) -> Tensor:
        """[1, n, in] -> [1, n, out]."""
        rows = inputs.flatten(0, -2)
        tiles = rows.split(self.rows) if self.rows else (rows,)
        out = self.linear(rows) if len(tiles) == 1 else torch.cat([self.linear(tile) for tile in tiles])
        return out.unflatten(0, inputs.shape[:-1])


def tile(network: PreTrainedModel, geometry: Geometry) -> None:
    """Has the network's linear layers compute in the tiles of `geometry`; see `untile`."""
    head = network.get_output_embeddings()
    for name, module in list(network.named_modules()):
        if isinstance(module, nn.Linear):
            rows = geometry.head_rows if module is head else geometry.tile
            network.set_submodule(name, TiledLinear(module, rows))


def untile(network: PreTrainedModel) -> None:
    for name, module in list(network.named_modules()):
        if isinstance(module, TiledLinear):
            network.set_submodule(name, module.linear)
