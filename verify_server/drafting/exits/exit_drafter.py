"""An early exit as the drafter of a server: it drafts in the target's own KV blocks, over the target's own KV.

Of a text that the target has computed nothing is left to read: keys and values of the first layers are the target's,
those of the imitating layer lie in the target's KV memory as one more layer over the same blocks: so they are rolled
back, preempted, shared as a prefix and put in order after a tree as all others. What a draft writes stands behind the
text, in blocks that only its session holds, and the step that verifies it writes the same places anew before it reads
them; so no bit of the target's depends on a draft.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from verify_server.drafting.model import ServerModel
from verify_server.engine.base import EngineInfo, Segment, TargetEngine
from verify_server.engine.torch.kv_memory import KVMemory
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.round.drafter import Ask, DrafterMemory, Proposal
from verify_server.round.sequence import Sequence as Text

log = logging.getLogger(__name__)


class ExitEngine(TargetEngine):
    """The exit's network over the target's KV memory."""

    def __init__(self, model: PackedModel, info: EngineInfo) -> None:
        """`info`: the target's."""
        self._model, self.info = model, info

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> TorchScores:
        """See `verify_server.engine.base.TargetEngine`."""
        logits, batch = self._model.run(segments)
        if not logits.amax(-1).isfinite().all():
            # A mask hides what stands behind a text from the target, but not NaN.
            for call in batch.calls:
                self._model.memory.clear(call.layer, batch.slots)
        return TorchScores(logits)


class TargetBlocks(DrafterMemory):
    """The target's blocks; a draft has some as far as there is free memory."""

    def prepare(self, text: Text, most: int) -> tuple[tuple[int, ...], int] | None:
        """See `DrafterMemory`."""
        text.memory.grow(min(text.memory.reach(), len(text) + most))
        return super().prepare(text, most)


class ExitDrafter(ServerModel):
    """`opensled serve --server-drafter exit`."""

    pass_share, read_share = 0.4, 0.0  # chosen

    def place(self, tenant: str) -> DrafterMemory:
        """See `ServerDrafter`."""
        return TargetBlocks()

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The newest token is read in the pass that drafts the first one, and costs no pass of its own."""
        return [proposal._replace(read=0) for proposal in super().propose(asks)]


class ExitStates:
    """Writes keys and values of the imitating layer for every row that the target computes: they follow from the state
    that leaves the exit's last layer. See `verify_server.engine.torch.tap.RowReader`."""

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
