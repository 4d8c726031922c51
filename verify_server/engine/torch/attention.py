"""Attention over paged KV, called by every transformers layer through `AttentionInterface` (loading.py registers it).

Scaling, window and softcap are read from the call, never from a config: they differ between the layers of one model.
A backend (packing.py) computes one layer's attention for a packed batch; `sdpa` runs on every device.
"""

from typing import Any

import torch
from torch import Tensor

from opensled.core.errors import UnsupportedModel
from opensled.process.registry import Registry
from verify_server.engine.torch.packing import Attend, AttentionBackend, PackedBatch

NAME = "opensled_paged"
# What other models ask of attention beyond causal order; silently ignoring one would give wrong tokens.
REFUSED = {"s_aux": "attention sinks", "sinks": "attention sinks", "position_bias": "a position bias"}
BACKENDS = Registry(
    "attention",
    {
        "sdpa": "verify_server.engine.torch.sdpa:BACKEND",
        "gather": "verify_server.engine.torch.paged_gather:BACKEND",
        "triton": "verify_server.engine.torch.triton_attention:BACKEND",
    },
)


def backend_of(name: str) -> AttentionBackend:
    """Raises UsageError, which names the choices, or what a backend misses here."""
    backend: AttentionBackend = BACKENDS.get(name)
    return backend


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    opensled_batch: PackedBatch | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """One layer: stores the new keys and values, attends; [1, heads, rows, size] -> [1, rows, heads, value size].

    Raises UnsupportedModel if the layer asks for a kind of attention that is not ours.
    """
    if opensled_batch is None:
        raise UnsupportedModel(
            f"{type(module).__name__} is not handed the arguments of the model call; no paged KV"
        )
    _refuse_foreign(kwargs, attention_mask, is_causal)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    how = Attend(_layer_of(module), scaling, sliding_window, softcap)
    opensled_batch.calls.append(how)
    live = len(opensled_batch.slots)
    keys, values = key[0].transpose(0, 1)[:live], value[0].transpose(0, 1)[:live]
    opensled_batch.memory.write(how.layer, opensled_batch.slots, keys, values)
    opensled_batch.memory.clear(how.layer, opensled_batch.tails)
    out = opensled_batch.backend.attend(query[0].transpose(0, 1), opensled_batch, how)
    return out[None], None


def _layer_of(module: torch.nn.Module) -> int:
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise UnsupportedModel(f"{type(module).__name__} does not say which layer it is; its KV has no place")
    return layer


def _refuse_foreign(kwargs: dict[str, Any], attention_mask: Tensor | None, is_causal: bool | None) -> None:
    for name, meaning in REFUSED.items():
        if kwargs.get(name) is not None:
            raise UnsupportedModel(
                f"this model needs {meaning} ({name}), which the torch engine does not have"
            )
    if attention_mask is not None or is_causal is False:
        raise UnsupportedModel("this model attends by a mask of its own; only causal decoders can be targets")
