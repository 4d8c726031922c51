"""The folder of a trained exit: a Llama as safetensors, the same as GGUF, and `exit.json`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from transformers import LlamaForCausalLM

from opensled.draft_assembly import assemble_gguf
from opensled.store import model_file
from opensled_training.distil.shipped_layers import write_layers
from opensled_training.exits.exit_source import ExitSource
from opensled_training.export import write_onnx
from verify_server.exits.exit_file import WEIGHTS, ExitFile

KIND = "Q8_0"  # of the layers in the GGUF file; the embedding is the target's own, as it is
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast"}


def write_folder(model: LlamaForCausalLM, source: ExitSource, about: ExitFile, onnx: bool = False) -> None:
    """What is there is written over. Raises UnsupportedModel where the target's embedding cannot be copied."""
    folder = about.folder
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    (folder / WEIGHTS).chmod(0o644)  # safetensors makes files that only their owner reads
    (folder / "tokenizer.json").write_bytes(source.text.tokenizer_json)
    template = {"chat_template": source.text.chat_template} if source.text.chat_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER | template))
    _write_gguf(model, source, folder / f"{_name(source)}-exit-{about.layers}.gguf")
    if onnx:
        write_onnx(folder, folder / f"{_name(source)}-exit-{about.layers}-int8.onnx")
    about.save()


def _name(source: ExitSource) -> str:
    return Path(source.name).stem


def _write_gguf(model: LlamaForCausalLM, source: ExitSource, path: Path) -> None:
    """For llama.cpp, with the target's embedding and tokenizer."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        layers, made = Path(scratch) / "layers.gguf", Path(scratch) / path.name
        write_layers(model, layers, path.stem, KIND)
        assemble_gguf(layers, model_file(source.name, "*.gguf"), made)
        made.replace(path)
