"""An early exit as the drafter of a server: it drafts in the target's own KV blocks, over the target's own KV.

Of a text that the target has computed nothing is left to read: keys and values of the first layers are the target's,
those of the imitating layer are written with them (exit_states.py). What a draft writes stands behind the text, in
blocks that only its session holds, and the step that verifies it writes the same places anew before it reads them; so
no bit of the target's depends on a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from verify_server.drafting.model import ServerModel
from verify_server.engine.base import EngineInfo, Segment, TargetEngine
from verify_server.engine.torch.packed_model import PackedModel
from verify_server.engine.torch.torch_scores import TorchScores
from verify_server.round.drafter import Ask, Proposal


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


class ComputedKV:
    """`verify_server.drafting.model.ReadKV` where the target has computed all of a text but its newest token."""

    def count_computed(self, ask: Ask) -> int:
        return ask.length - 1

    def write(self, ask: Ask, start: int, fed: Sequence[int]) -> None:
        """What a draft writes is not read again."""

    def free(self, block: int) -> None:
        """Nothing is known of blocks."""

    def forget(self, session: int) -> None:
        """Nothing is known of sessions."""


class ExitDrafter(ServerModel):
    """`opensled serve --server-drafter exit`."""

    reads_blocks: ClassVar[bool] = True

    def __init__(self, engine: ExitEngine) -> None:
        super().__init__(engine, kv=ComputedKV())

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """The newest token is read in the pass that drafts the first one, and costs no pass of its own."""
        return [proposal._replace(read=0) for proposal in super().propose(asks)]
