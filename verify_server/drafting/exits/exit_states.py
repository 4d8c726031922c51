"""Keys and values of the imitating layer, for every row that the target computes.

They lie in the target's KV memory as one more layer over the same blocks, so that they are rolled back, preempted,
shared as a prefix and put in order after a tree as all others. They follow from the state that leaves the exit's last
layer, which the target has computed anyway.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from verify_server.engine.torch.kv_memory import KVMemory

log = logging.getLogger(__name__)


class ExitStates:
    """`verify_server.engine.torch.tap.RowReader` for an exit after `layers` layers."""

    def __init__(self, network: PreTrainedModel, layers: int, imitation: nn.Module, memory: KVMemory) -> None:
        self.taps: tuple[int, ...] = (layers,)
        self._layer, self._attention = imitation, imitation.self_attn
        self._rotary, self._memory = network.get_decoder().rotary_emb, memory
        self._allocate(network)

    def read(self, hidden: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Of the rows [n, 1, d] that leave the last layer before the exit, at `positions` [n]."""
        try:
            keys, values = self._keys_values(hidden[:, 0], positions)
        except Exception:
            log.exception("the early exit failed on %d rows; drafts behind them will be poor", len(slots))
            return
        self._memory.write(self._attention.layer_idx, slots, keys, values)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Nothing: the target moves all layers of its memory."""

    def _keys_values(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[n, KV heads, head size] each, as the layer itself writes them."""
        normed, size = self._layer.input_layernorm(hidden)[None], self._attention.head_dim
        keys, values = (
            project(normed).unflatten(-1, (-1, size))
            for project in (self._attention.k_proj, self._attention.v_proj)
        )
        cos, sin = self._rotary(normed, positions[None])
        turned = apply_rotary_pos_emb(keys, keys, cos, sin, unsqueeze_dim=2)[1]
        return turned[0], values[0]

    @torch.inference_mode()
    def _allocate(self, network: PreTrainedModel) -> None:
        """At once, so that a lack of memory shows at load."""
        first = torch.zeros(1, dtype=torch.int64, device=network.device)
        size = network.config.get_text_config(decoder=True).hidden_size
        keys, values = self._keys_values(torch.zeros(1, size).to(network.device, network.dtype), first)
        self._memory.write(self._attention.layer_idx, first, keys, values)
