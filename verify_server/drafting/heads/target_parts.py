"""What a draft head has in common with its target: embedding, final norm and output layer, all frozen."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedModel

from verify_server.engine.torch.tap import places_of


class TargetParts:
    """Of one network; the output layer for the ids of a draft vocabulary."""

    def __init__(self, network: PreTrainedModel, draft_ids: Tensor) -> None:
        """`draft_ids` [V]: the target's id of each id that the head can draft. Raises UnsupportedModel."""
        self._embedding = network.get_input_embeddings()
        self._norm = places_of(network)[1]
        self.draft_ids = draft_ids.to(network.device)
        self._output = network.get_output_embeddings()
        weight = self._embedding.weight if network.config.tie_word_embeddings else self._output.weight
        # oneDNN's layers have their weights in its own order and nowhere else.
        self._rows = None if weight.is_meta else weight[self.draft_ids].detach().clone()

    def embed(self, ids: Tensor) -> Tensor:
        """[n, d] of ids [n]."""
        found: Tensor = self._embedding(ids)
        return found

    def normalize(self, hidden: Tensor) -> Tensor:
        """Hidden states as the output layer reads them."""
        found: Tensor = self._norm(hidden)
        return found

    def logits(self, normed: Tensor) -> Tensor:
        """[..., V] of normed hidden states [..., d]."""
        if self._rows is not None:
            return linear(normed, self._rows)
        flat = self._output(normed.flatten(0, -2)[None])[0]
        return flat.index_select(-1, self.draft_ids).unflatten(0, normed.shape[:-1])
