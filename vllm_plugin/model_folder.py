"""Every model as the folder that vLLM loads: config.json, safetensors and the tokenizer's files.

vLLM reads no GGUF. A GGUF file is written as such a folder once, in this user's cache: its weights in float32, which
holds each value of all types of GGUF as it is, and the tokenizer and chat template that engine torch takes from it.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedTokenizerFast

from opensled.core.errors import ModelError
from opensled.models.derived import DerivedModels
from opensled.models.download import keeping
from opensled.models.gguf_file import read_head, read_metadata
from opensled.models.hub_listing import MORE_TEMPLATES
from opensled.models.store import is_hub_id, model_path
from opensled.process.host_memory import available_host_bytes
from opensled.process.logs import announce, tell_long
from opensled.text.tokenizer import tokenizer_of
from verify_server.engine.torch import loading
from verify_server.engine.torch.loading import Weights
from verify_server.text import template_files
from verify_server.text.gguf_text import GgufText

FOLDERS = DerivedModels("folders", weights="model.safetensors")
FLOAT32 = 4  # bytes
OTHER_WAY = "give the model's folder with config.json and *.safetensors, or its id on the hub"


def folder_of(model: str) -> Path:
    """The folder of a model given as a known name, a folder, a GGUF file or a hub id; downloads or writes it first.

    Raises NotFound, Unauthorized, Unreachable, UnsupportedModel, and ModelError where there is no room for it.
    """
    FOLDERS.sweep()
    weights = loading.find_weights(model if is_hub_id(model) else str(model_path(model)))
    return _folder_of_gguf(weights) if weights.gguf else weights.folder


def _folder_of_gguf(weights: Weights) -> Path:
    path, place = weights.path, FOLDERS.place(weights.path)
    if FOLDERS.is_whole(place):
        return place
    size = _require_memory(path)
    with tell_long("still widening the weights") as spell, FOLDERS.part(path, size) as part:
        with keeping(part.parent, size):
            part.mkdir()
            _write_model(weights, part)
            _write_text(path, part)
        FOLDERS.keep(part, path, size)
    announce(
        f"{path.name} is written as the folder that vLLM loads, its weights in float32: once, "
        f"{size / 1e6:.0f} MB in {spell.seconds:.0f} s: {place}"
    )
    return place


def _require_memory(path: Path) -> int:
    """The bytes of the weights in float32, which writing takes as memory. Raises ModelError if too little is free."""
    size = FLOAT32 * sum(math.prod(info.shape) for info in read_head(path).tensors.values())
    free = available_host_bytes()
    if size > free:
        raise ModelError(
            f"vLLM reads no GGUF, and to write {path.name} as a folder takes {size / 1e9:.1f} GB of memory; "
            f"{free / 1e9:.1f} GB are free: {OTHER_WAY}"
        )
    return size


def _write_model(weights: Weights, folder: Path) -> None:
    """config.json, generation_config.json and the weights. Raises UnsupportedModel."""
    network = loading.load_network(weights, torch.device("cpu"), torch.float32)
    transformers.utils.logging.disable_progress_bar()  # we tell what goes on
    network.save_pretrained(folder, max_shard_size="1000TB")


def _write_text(path: Path, folder: Path) -> None:
    """Tokenizer and chat templates. Raises UnsupportedModel and VocabularyMismatch."""
    text = GgufText(path)
    text.require_pieces(read_metadata(path).get("tokenizer.ggml.tokens") or [])
    tokenizer = tokenizer_of(text.tokenizer_json)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **text.special_tokens).save_pretrained(folder)
    if text.chat_template:
        (folder / template_files.TEXT).write_text(text.chat_template, "utf-8")
    if text.tool_template != text.chat_template:
        more = folder / MORE_TEMPLATES
        more.mkdir()
        (more / "tool_use.jinja").write_text(text.tool_template, "utf-8")
