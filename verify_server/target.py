"""A target ready to serve: an engine and the tokenizer that belongs to it."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.store import is_hub_id, model_path
from verify_server.config import ServeConfig
from verify_server.engine.base import TargetEngine
from verify_server.text import TargetText


@dataclass(frozen=True)
class Target:
    """What `serve` serves; `model_id` is what people call it."""

    model_id: str
    engine: TargetEngine
    text: TargetText


def load_torch(config: ServeConfig) -> Target:
    """A Hugging Face decoder: a bundled name, a folder, or a hub id."""
    from verify_server.engine import loading, torch_engine

    name = config.model
    loading.use_threads(config.threads)
    folder = loading.find_folder(name if is_hub_id(name) else str(model_path(name)))
    engine = torch_engine.load(
        str(folder),
        device=config.device,
        dtype=config.dtype,
        numerics=config.numerics,
        kv_tokens=config.kv_tokens,
        context=config.context,
    )
    return Target(name if is_hub_id(name) else folder.name, engine, TargetText(folder))
