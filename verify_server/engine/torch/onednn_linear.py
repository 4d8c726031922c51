"""Linear layers whose weights lie in the order in which oneDNN multiplies, for bfloat16 on a CPU.

A plain layer puts its weights into that order in every call, which takes longer than to multiply them with a few rows
(layers of SmolLM2 with AMX: 97 microseconds against 33, and 225 against 73). The operators are those that torch's own
compiler uses (torch/_inductor/mkldnn_lowerings.py).
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

# Rows that the order is chosen for. With the one for a single row, more numbers of rows give a row the same bits.
ROWS = 1


class OneDNNLinear(nn.Linear):
    """A layer whose weights are in oneDNN's order and nowhere else: `weight` has a shape and a dtype, and no values."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self._ordered = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)
        self.weight = nn.Parameter(linear.weight.detach().to("meta"), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._ordered, self.bias, "none", [], "")
        return out


def reorder(network: PreTrainedModel) -> None:
    """Have the network's linear layers multiply by oneDNN, where this processor does so in bfloat16."""
    if network.device.type != "cpu" or not _is_supported():
        return
    for name, module in list(network.named_modules()):
        if type(module) is nn.Linear and module.weight.dtype == torch.bfloat16:
            network.set_submodule(name, OneDNNLinear(module))


def device_of(layer: nn.Linear) -> torch.device:
    """Where it multiplies."""
    return torch.device("cpu") if isinstance(layer, OneDNNLinear) else layer.weight.device


def with_weight(layer: nn.Linear, weight: Tensor) -> nn.Linear:
    """A layer of the same kind with this weight and no bias."""
    twin = nn.Linear(layer.in_features, layer.out_features, bias=False, device="meta")
    twin.weight = nn.Parameter(weight, requires_grad=False)
    return OneDNNLinear(twin) if isinstance(layer, OneDNNLinear) else twin


def _is_supported() -> bool:
    """Whether the operators are here and give what a plain layer gives."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        plain = nn.Linear(32, 16, bias=False, dtype=torch.bfloat16)
        inputs = torch.ones(3, 32, dtype=torch.bfloat16)
        with torch.inference_mode():
            return torch.allclose(OneDNNLinear(plain)(inputs), plain(inputs), atol=0.05)
    except (AttributeError, RuntimeError):  # another version of torch
        return False
