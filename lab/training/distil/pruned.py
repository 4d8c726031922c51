"""The draft before training: some layers of the target, under its embedding."""

import copy
from collections.abc import Sequence

from transformers import LlamaForCausalLM

# Of the target's 30 layers, the ones that the draft begins with.
KEPT = (0, 1, 2, 27, 28, 29)


def pruned(target: LlamaForCausalLM, kept: Sequence[int] = KEPT) -> LlamaForCausalLM:
    """A draft with these layers of `target`, copied, and the target's own embedding, which stays as it is."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(kept)
    draft = LlamaForCausalLM(config)
    states = target.state_dict()
    own = {name: states[_origin(name, kept)] for name in draft.state_dict()}
    draft.load_state_dict(own)
    draft.model.embed_tokens.requires_grad_(False)
    return draft


def _origin(name: str, kept: Sequence[int]) -> str:
    """The target's name of a parameter of the draft."""
    prefix = "model.layers."
    if not name.startswith(prefix):
        return name
    number, _, rest = name.removeprefix(prefix).partition(".")
    return f"{prefix}{kept[int(number)]}.{rest}"
