"""The facts behind a memory plan: of the files and the config of a target, and of the device that is to hold it."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from opensled.models.gguf_file import read_head
from opensled.process.host_memory import available_host_bytes
from opensled.process.logs import tell
from verify_server.engine.memory_plan import (
    GRAPHS,
    Demand,
    StoredTensor,
    Supply,
    Wish,
    list_tensors,
    loaded_size,
    plan_memory,
)
from verify_server.engine.torch import loading, model_sizes
from verify_server.engine.torch.kv_memory import BLOCK_SIZE
from verify_server.engine.torch.loading import Weights
from verify_server.engine.torch.sdpa_groups import GATHER_TOKENS


class MemoryNeeds(NamedTuple):
    """Of one device, for one target."""

    demand: Demand
    device: torch.device
    wish: Wish

    def without_kv(self) -> MemoryNeeds:
        """Of a draft model beside its target: its KV takes no memory that anything else needs."""
        demand, wish = self.demand._replace(kv_token=0), self.wish._replace(kv_tokens=0)
        return self._replace(demand=demand, wish=wish)

    def require(self) -> None:
        """Tells the plan. Raises UsageError where the target does not fit; it is not read yet."""
        plan = plan_memory(self.demand, supply_of(self.device), self.wish)
        tell(plan.describe())

    def blocks(self, bytes_per_token: int) -> int:
        """Blocks of KV, now that the target is read and one token's KV is known. Raises UsageError."""
        rest = self.demand._replace(weights=0, kv_token=bytes_per_token)
        tokens = plan_memory(rest, supply_of(self.device), self.wish).kv_tokens
        return -(-tokens // BLOCK_SIZE)


def memory_of(
    weights: Weights, device: torch.device, dtype: torch.dtype, wish: tuple[int, int], max_rows: int
) -> MemoryNeeds:
    """`wish`: tokens of KV (0 = as many as suit) and of the longest text; `max_rows`: of a step."""
    config = loading.read_config(weights)
    kv_token = _kv_token(config) * dtype.itemsize
    layers = config.get_text_config(decoder=True).num_hidden_layers
    scratch = GATHER_TOKENS * kv_token // layers + max_rows * _widest(config) * dtype.itemsize
    demand = Demand(_weights(weights, config, dtype), kv_token, GRAPHS[device.type], scratch)
    return MemoryNeeds(demand, device, Wish(*wish, str(dtype).removeprefix("torch.")))


def supply_of(device: torch.device) -> Supply:
    """What is free on it now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return Supply(str(device), torch.cuda.mem_get_info(device)[0], torch.cuda.device_count())
    return Supply(str(device), available_host_bytes())


def _weights(weights: Weights, config: Any, dtype: torch.dtype) -> int:
    if weights.gguf:
        return sum(loaded_size(tensor, dtype.itemsize) for tensor in _of_gguf(weights))
    tied = getattr(config.get_text_config(decoder=True), "tie_word_embeddings", False)
    return sum(
        loaded_size(tensor, dtype.itemsize)
        for tensor in list_tensors(weights.folder)
        if not (tied and tensor.name == "lm_head.weight")
    )


def _of_gguf(weights: Weights) -> list[StoredTensor]:
    """Engine torch dequantizes them all."""
    tensors = read_head(weights.path).tensors
    return [StoredTensor(name, "F32", prod(info.shape), 0) for name, info in tensors.items()]


def _kv_token(config: Any) -> int:
    """Numbers that a token has in all layers."""
    text = config.get_text_config(decoder=True)
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    keys = getattr(text, "qk_head_dim", None) or size  # where keys and values are of different sizes
    values = getattr(text, "v_head_dim", None) or size
    return int(text.num_hidden_layers * model_sizes.key_heads(text) * (keys + values))


def _widest(config: Any) -> int:
    """Numbers that a row has at once, at most: its logits, and between two matrices of a layer."""
    text = config.get_text_config(decoder=True)
    return int(text.vocab_size + 3 * (getattr(text, "intermediate_size", None) or 4 * text.hidden_size))
