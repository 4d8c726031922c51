"""The shapes of targets of random weights, and model folders for a server that makes its weights itself."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

SHAPES = Path(__file__).with_name("shapes")


def config_of(shape: str) -> dict[str, Any]:
    """The configuration in `shapes/SHAPE.json`, as Hugging Face spells it."""
    return dict(json.loads((SHAPES / f"{shape}.json").read_text()))


def write_folder(folder: Path, shape: str) -> Path:
    """A model folder without weights: the shape's config, and a tokenizer that spells id 7 as `<7>`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(shape)
    pieces = {f"<{number}>": number for number in range(config["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(pieces, unk_token="<0>"))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<0>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def weights_of(config: dict[str, Any]) -> int:
    """Numbers in all matrices of a dense Llama; its norms are nothing beside them."""
    width, heads, kv_heads = (
        config["hidden_size"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
    )
    attention = 2 * width * (heads + kv_heads) * config["head_dim"]
    layer = attention + 3 * width * config["intermediate_size"]
    return int(config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * width)


def kv_numbers(config: dict[str, Any]) -> int:
    """Numbers in the keys and values of one token."""
    return int(2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"])
