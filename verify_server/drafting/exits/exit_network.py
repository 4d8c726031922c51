"""The network of an early exit beside its target: another list of layers over the target's own modules, not copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from opensled.core.errors import UnsupportedModel
from verify_server.engine.torch.tap import places_of

# Parts of attention that an imitating layer has: keys and values of a row follow from its state by these alone.
PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}


def exit_network(network: PreTrainedModel, layers: int, imitation: nn.Module | None) -> PreTrainedModel:
    """`network` with its first `layers` layers and `imitation` behind them (None: nothing); all modules are shared.

    Raises UnsupportedModel.
    """
    own, _ = places_of(network)
    chosen = [*own[:layers], *([imitation] if imitation is not None else [])]
    decoder = network.get_decoder()
    path = next(name for name, module in network.named_modules() if module is decoder)
    return _with(network, [*path.split("."), "layers"] if path else ["layers"], nn.ModuleList(chosen))


def _with(module: nn.Module, path: Sequence[str], part: nn.Module) -> nn.Module:
    """A copy of `module` with another `part` at `path`; the modules on the way are copied too, all others shared."""
    name, *rest = path
    twin = copy.copy(module)
    # A module keeps its parts in this dictionary, which a shallow copy would share.
    twin.__dict__["_modules"] = dict(module._modules)
    twin._modules[name] = _with(module.get_submodule(name), rest, part) if rest else part
    return twin


def imitation_of(network: PreTrainedModel, weights: Mapping[str, Tensor]) -> nn.Module:
    """A decoder layer of the target's family with these `weights`; its KV has a place of its own, behind the target's.

    Raises UnsupportedModel.
    """
    own, _ = places_of(network)
    config = network.get_decoder().config
    with torch.device("meta"):
        layer: nn.Module = type(own[-1])(config, len(own) - 1)
    attention = getattr(layer, "self_attn", None)
    if attention is None or {name for name, _ in attention.named_children()} != PARTS:
        raise UnsupportedModel(
            f"layers of {type(network).__name__} are not of Llama's form, which an early exit needs; use "
            "--server-drafter model"
        )
    try:
        layer.load_state_dict(dict(weights), assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise UnsupportedModel(
            f"the imitating layer does not fit a layer of this target: {reason}"
        ) from error
    attention.layer_idx = len(own)
    return layer.to(device=network.device, dtype=network.dtype).eval().requires_grad_(False)
