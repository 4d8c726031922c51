"""The tap: hidden states of chosen places in a network, of every row that it computes.

Places are numbered as transformers number `output_hidden_states`: 0 is what enters the first layer, i what leaves layer
i, and the last one what leaves the final norm. Hooks take them where they are; that these are the right places is
checked against transformers' own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from opensled.core.errors import UnsupportedModel
from verify_server.engine.torch.selftest import attending_by

PROBED = 6  # tokens of the text by which the places are checked


class RowReader(Protocol):
    """Who reads tapped states, in the engine's thread."""

    taps: tuple[int, ...]

    def read(self, hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Rows of a step are computed: their states [n, taps, size], positions in their texts [n], and the slots [n] of
        the KV memory that are theirs. Raises nothing: a step does not fail for it."""

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """What was at the slots `sources` [n] is at `targets` [n] as well."""


class HiddenTap:
    """Keeps the states of the latest forward pass, on the network's device."""

    def __init__(self, network: PreTrainedModel, taps: Sequence[int]) -> None:
        """Raises UnsupportedModel for a network whose places cannot be told, or are not those that it says."""
        self.taps = tuple(taps)
        self._states: dict[int, Tensor] = {}
        layers, norm = places_of(network)
        if not all(0 <= tap <= len(layers) for tap in taps):
            raise UnsupportedModel(f"hidden states {list(taps)} of a network with {len(layers)} layers")
        for tap in self.taps:
            if tap < len(layers):
                layers[tap].register_forward_pre_hook(self._enters(tap), with_kwargs=True)
            else:
                norm.register_forward_hook(self._leaves(tap))
        _check(network, self)

    def stack_rows(self, rows: int) -> Tensor:
        """[rows, taps, size] of the first `rows` packed rows of the latest forward pass."""
        return torch.stack([self._states[tap][0, :rows] for tap in self.taps], dim=1)

    def latest_states(self) -> dict[int, Tensor]:
        """[1, packed rows, size] of each place, as the latest forward pass left them."""
        return self._states

    def hold(self, states: dict[int, Tensor]) -> None:
        """From now on these are the states of the latest pass: one that ran without Python."""
        self._states = states

    def _enters(self, tap: int) -> Any:
        def keep(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._states[tap] = inputs[0] if inputs else named["hidden_states"]

        return keep

    def _leaves(self, tap: int) -> Any:
        def keep(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            self._states[tap] = output

        return keep


def places_of(network: PreTrainedModel) -> tuple[nn.ModuleList, nn.Module]:
    """The layers of a decoder, and its final norm. Raises UnsupportedModel."""
    decoder = network.get_decoder()
    layers, norm = getattr(decoder, "layers", None), getattr(decoder, "norm", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(norm, nn.Module):
        raise UnsupportedModel(
            f"{type(network).__name__} does not say which of its parts are its layers and its final norm; draft heads "
            "need both. Serve it without a head"
        )
    return layers, norm


@torch.inference_mode()
def _check(network: PreTrainedModel, tap: HiddenTap) -> None:
    """A family that adds to the states before or after a hook would feed a head with something else than it knows."""
    ids = torch.arange(PROBED, device=network.device)[None] % network.get_input_embeddings().weight.shape[0]
    with attending_by(network, "eager"):
        states = network(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    wanted = torch.stack([states[place][0] for place in tap.taps], dim=1)
    if not torch.equal(tap.stack_rows(PROBED), wanted):
        raise UnsupportedModel(
            f"the hidden states of {type(network).__name__} are not where its layers begin and end; serve it without a "
            "head"
        )
