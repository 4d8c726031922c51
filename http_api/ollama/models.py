"""What Ollama's API tells of the served model."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from typing import Any

from http_api.model_names import LATEST
from opensled.core.messages import GUIDE, ModelInfo

FAMILY = "opensled"  # for clients, that looks like the architecture of a model; the real one is not told


def timestamp(when: datetime | None = None) -> str:
    """A time, by default now, as Go writes it: 2026-11-23T03:20:30.123456Z."""
    return (when or datetime.now(timezone.utc)).isoformat().replace("+00:00", "Z")


def tags_entry(model: str, info: ModelInfo, since: str) -> dict[str, Any]:
    """An entry of /api/tags. `since`: when serving began. Sizes are not known here, and 0."""
    name = model if ":" in model else model + LATEST
    identity = "/".join((model, info.fingerprint, info.numerics))
    return {
        "name": name,
        "model": name,
        "modified_at": since,
        "size": 0,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(),
    }


def ps_entry(info: ModelInfo, since: str) -> dict[str, Any]:
    """An entry of /api/ps. It has no time of expiry: the server keeps its target."""
    entry = tags_entry(info.model_id, info, since)
    del entry["modified_at"]
    return {**entry, "size_vram": 0, "context_length": info.limits.context_length}


def describe_model(info: ModelInfo, since: str) -> dict[str, Any]:
    """The answer of /api/show."""
    tools = ["tools"] if info.has_chat_template and GUIDE in info.capabilities else []
    return {
        "modified_at": since,
        "details": _details(),
        "model_info": {
            "general.architecture": FAMILY,
            "general.basename": info.model_id,
            f"{FAMILY}.context_length": info.limits.context_length,
            f"{FAMILY}.vocab_size": info.vocab_size,
            f"{FAMILY}.numerics": info.numerics,
        },
        "capabilities": [
            "completion",
            *tools,
            *(["vision"] if info.images else []),
            *(["thinking"] if info.thoughts else []),
        ],
    }


def _details() -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": FAMILY,
        "families": [FAMILY],
        "parameter_size": "",
        "quantization_level": "",
    }
