"""A real model as a quantized ONNX draft: made once, kept beside the model that was fetched."""

import tempfile
from pathlib import Path

from transformers import LlamaForCausalLM

from .export import run_builder

PRECISION = "int4"


def write_draft(network: LlamaForCausalLM, tokenizer_json: bytes, folder: Path) -> None:
    """`folder` appears once it is complete: model.onnx with its weights, its configuration and the tokenizer.

    The weights are rounded to 4 bits in blocks of 32, without data. Raises RuntimeError if the builder fails.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as name:
        made = built(network, tokenizer_json, Path(name))
        (made / "tokenizer.json").write_bytes(tokenizer_json)
        made.rename(folder)


def built(network: LlamaForCausalLM, tokenizer_json: bytes, scratch: Path) -> Path:
    """What the builder makes of a model, in a folder of `scratch`. Raises RuntimeError if it fails."""
    source, made = scratch / "source", scratch / "made"
    network.save_pretrained(source)
    (source / "tokenizer.json").write_bytes(tokenizer_json)
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    run_builder(source, made, PRECISION)
    return made
