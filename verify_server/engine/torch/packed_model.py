"""A transformers decoder and its KV memory, run on packed batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from verify_server.engine.base import Segment
from verify_server.engine.torch.attention import backend_of
from verify_server.engine.torch.kv_memory import BLOCK_SIZE, KVMemory
from verify_server.engine.torch.packing import Geometry, PackedBatch, pack
from verify_server.engine.torch.tree_packing import slots_at


@dataclass
class PackedModel:
    """`run` is the whole of the torch engine's arithmetic."""

    network: PreTrainedModel
    memory: KVMemory
    geometry: Geometry
    backend: str

    @torch.inference_mode()
    def run(self, segments: Sequence[Segment]) -> tuple[Tensor, PackedBatch]:
        """Logits [wanted rows, vocabulary] in order of the segments, and the batch they came from."""
        backend = backend_of(self.backend)
        batch = pack(segments, self.geometry, self.memory, backend, self.network.device)
        return self.compute(batch)[: batch.num_wanted], batch

    @torch.inference_mode()
    def compute(self, batch: PackedBatch) -> Tensor:
        """Logits [padded wanted rows, vocabulary]; the batch's KV is in the memory."""
        output = self.network(
            **self._inputs(batch),
            position_ids=batch.positions,
            use_cache=False,
            logits_to_keep=batch.wanted,
            opensled_batch=batch,
        )
        logits: Tensor = output.logits[0]
        return logits

    def _inputs(self, batch: PackedBatch) -> dict[str, Tensor]:
        """The tokens; where a step has rows of pictures, embeddings. Those of tokens are the same, to the last bit."""
        if batch.pictures is None:
            return {"input_ids": batch.tokens}
        embedded: Tensor = self.network.get_input_embeddings()(batch.tokens)
        rows, values = batch.pictures
        return {"inputs_embeds": embedded.index_copy(1, rows, values[None].to(embedded.dtype))}

    @torch.inference_mode()
    def erase(self, blocks: Sequence[int], start: int) -> None:
        """See `verify_server.engine.base.TargetEngine`."""
        places = np.arange(start, len(blocks) * BLOCK_SIZE)
        self.memory.erase(torch.as_tensor(slots_at(blocks, places), device=self.network.device))

    @torch.inference_mode()
    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> Tensor:
        """See `verify_server.engine.base.TargetEngine`; the slots [2, n] from which and to which KV was moved."""
        places = torch.as_tensor(slots_at(blocks, np.array(moves).T), device=self.network.device)
        self.memory.move(*places)
        return places
