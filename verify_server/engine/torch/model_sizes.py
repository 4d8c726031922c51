"""Sizes that a model's config states. What no model has is refused before a library builds it: a billion layers keep
transformers busy for ever."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opensled.core.errors import UnsupportedModel

# Real models have up to 126 layers, and some hundred experts. Chosen: parts up to here are built in seconds.
MAX_PARTS = 4096
# Keys that count parts which are built one by one: num_hidden_layers, n_layer, num_local_experts.
COUNTS = re.compile(r"^(num|n)_\w*(layers?|experts?)$|_(layers|experts)$")
# transformers allocates what a config states before it finds that the weights are smaller. Real sizes end at 300,000.
MAX_SIZE = 1 << 22
SIZES = re.compile(r"_size$|_dim$")


def require_sane(path: Path) -> None:
    """Raises UnsupportedModel for a config.json that no JSON reader takes, or with absurd numbers of parts."""
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}; download it again") from error
    for key, value in _numbers(config):
        least = 1 if key == "num_hidden_layers" else 0
        most = MAX_PARTS if COUNTS.search(key) else MAX_SIZE if SIZES.search(key) else value
        if value > most or (value < least and COUNTS.search(key)):
            raise UnsupportedModel(f"{path} states {key} = {value}, not {least} to {most}; download it again")


def key_heads(text: Any) -> int:
    """Attention heads of the keys and values, by the config of a decoder."""
    return getattr(text, "num_key_value_heads", None) or int(text.num_attention_heads)


def _numbers(value: Any) -> Iterator[tuple[str, int]]:
    """Every whole number of a JSON value, by its key."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            yield from ((key, found) for key, found in item.items() if isinstance(found, int))
            waiting += item.values()
