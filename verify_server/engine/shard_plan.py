"""How a target is cut into shards, by the plan that transformers has for its family; and what cannot be cut."""

from __future__ import annotations

from typing import Any, NamedTuple

from opensled.errors import UnsupportedModel, UsageError
from verify_server.engine.base import TargetEngine
from verify_server.engine.image_encoder import sees

SPLIT = "colwise"  # the style of a layer whose output stays with its shard
# Layers that make the keys of attention, as families name them
KEYS = ("k_proj", "kv_b_proj", "qkv_proj", "query_key_value")


class _Heads(NamedTuple):
    """Attention heads that one process computes."""

    queries: int
    keys: int


def require_whole(engine: TargetEngine, flag: str) -> None:
    """Raises UsageError for what computes with the target's own weights, where this process has a part of them."""
    if engine.info.shards > 1:
        raise UsageError(
            f"{flag} computes with the target's own weights, and each of --shards {engine.info.shards} has a part of "
            "them; leave out one of the two"
        )


def heads_of(config: Any, shards: int = 1) -> _Heads:
    """Those of each shard. A plan that gathers the queries of all shards has all heads in each of them."""
    text = config.get_text_config(decoder=True)
    whole = _Heads(
        text.num_attention_heads, getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    )
    if shards == 1 or not _splits_heads(text):
        return whole
    return _Heads(whole.queries // shards, whole.keys // shards)


def check_plan(config: Any, shards: int) -> None:
    """Raises UnsupportedModel, or UsageError for a number of shards that does not suit the model."""
    if sees(config):
        raise UnsupportedModel(
            f"{config.model_type} looks at pictures, which shards do not; serve it without --shards"
        )
    text = config.get_text_config(decoder=True)
    if not getattr(text, "base_model_tp_plan", None):
        raise UnsupportedModel(
            f"transformers has no plan by which {config.model_type} is cut into shards; serve it without --shards"
        )
    heads = heads_of(config)
    if _splits_heads(text) and (heads.queries % shards or heads.keys % shards):
        fitting = [
            count for count in range(2, heads.keys + 1) if heads.queries % count == heads.keys % count == 0
        ]
        choice = f"--shards {' or '.join(map(str, fitting))}" if fitting else "one process"
        raise UsageError(
            f"{config.model_type} with {heads.queries} attention heads and {heads.keys} heads of KV cannot be cut "
            f"into {shards} shards: each needs as many of both; use {choice}"
        )


def _splits_heads(text: Any) -> bool:
    plan = text.base_model_tp_plan.items()
    return any(style == SPLIT and name.rpartition(".")[2] in KEYS for name, style in plan)
