"""Families the engine must refuse: what cannot be rolled back or packed gives wrong tokens without any error."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from opensled.core.errors import UnsupportedModel
from verify_server.engine.torch.packing import Attend

SLIDING = "sliding_attention"
LAYER_TYPES = {"full_attention", SLIDING}
# Their frequencies depend on the longest position in the whole packed batch, beyond the pretrained length.
BATCH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_STATEFUL = re.compile(r"mamba|recurrent|linearattention|deltanet|rwkv|shortconv|xlstm", re.IGNORECASE)


def check_config(config: Any, context: int) -> int:
    """The context length to serve, in positions: `context`, or all the model has if that is 0.

    Raises UnsupportedModel naming the reason.
    """
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{config.model_type} is an encoder-decoder; only decoders can be targets")
    strange = sorted(set(getattr(text, "layer_types", None) or ()) - LAYER_TYPES)
    if strange:
        raise UnsupportedModel(
            f"{config.model_type} has {', '.join(strange)} layers; the engine runs only full and sliding attention, "
            "because rejected tokens must leave no trace"
        )
    longest = getattr(text, "max_position_embeddings", None)
    if not isinstance(longest, int):
        raise UnsupportedModel(
            f"{config.model_type} names no max_position_embeddings: its context length is unknown"
        )
    served = min(context or longest, longest)
    _check_rope(text, served, longest)
    return served


def _check_rope(text: Any, served: int, longest: int) -> None:
    for rope in _rope_parameters(text):
        short = rope.get("original_max_position_embeddings") or longest
        if rope.get("rope_type") in BATCH_DEPENDENT_ROPE and served > short:
            raise UnsupportedModel(
                f"RoPE type {rope['rope_type']!r} changes with the longest sequence of a batch beyond {short} "
                f"positions; serve this model with a context of at most {short}"
            )


def _rope_parameters(text: Any) -> Iterable[dict[str, Any]]:
    """One dictionary for the model, or one per layer type."""
    parameters = getattr(text, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def check_modules(network: PreTrainedModel) -> None:
    """Refuses recurrent state and convolutions over time. Raises UnsupportedModel."""
    if network._is_stateful:
        raise UnsupportedModel(
            f"{type(network).__name__} keeps a recurrent state, which cannot be rolled back"
        )
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv1d) or _STATEFUL.search(type(module).__name__):
            raise UnsupportedModel(
                f"{name} ({type(module).__name__}) carries state from token to token; no rollback"
            )


def check_calls(network: PreTrainedModel, calls: Sequence[Attend], count: int) -> None:
    """Each of `count` layers must have attended through the engine exactly once in a forward pass.

    Raises UnsupportedModel.
    """
    text = network.config.get_text_config(decoder=True)
    layers = sorted(call.layer for call in calls)
    if layers != list(range(count)):
        raise UnsupportedModel(
            f"{type(network).__name__} has {count} layers, but layers {layers} attended through "
            "transformers' AttentionInterface; its attention cannot be replaced"
        )
    for call in calls:
        _check_window(text, call)


def _check_window(text: Any, call: Attend) -> None:
    """A window longer than the self-test's sequences would not show there, so compare with what the config says."""
    uniform = SLIDING if getattr(text, "sliding_window", None) is not None else "full_attention"
    layer_types = getattr(text, "layer_types", None) or [uniform] * text.num_hidden_layers
    expected = layer_types[call.layer] == SLIDING
    if expected != (call.window is not None):
        stated, given = ("a", "no") if expected else ("no", "a")
        raise UnsupportedModel(
            f"layer {call.layer} has {stated} sliding window but passes {given} window to attention"
        )
