"""A Hugging Face Llama folder as GGUF, readable by llama.cpp.

Contract: token ids and tensors as in the folder; only the rounding of the weights' kind may change a logit.
Names and the query/key permutation follow llama.cpp's `convert_hf_to_gguf.py` (Llama: rotary pairs interleaved).
"""

import json
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import LlamaConfig

from lab.shipped.gguf_form import LAYER_TENSORS, interleave

from .train_tokenizer import SPECIAL_TOKENS

# How matrices may be stored -> what the file then says of itself.
KINDS = {
    "F32": gguf.LlamaFileType.ALL_F32,
    "F16": gguf.LlamaFileType.MOSTLY_F16,
    "Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
}


def write_gguf(folder: Path, path: Path, kind: str = "Q8_0") -> None:
    """`kind`: one of `KINDS`."""
    config = LlamaConfig.from_pretrained(folder)
    writer = gguf.GGUFWriter(path, "llama")
    _add_architecture(writer, config, path.stem)
    writer.add_file_type(KINDS[kind])
    _add_tokenizer(writer, folder, config.vocab_size)
    for name, tensor in load_file(folder / "model.safetensors").items():
        add_tensor(writer, gguf_name(name), permuted(name, tensor.astype(np.float32), config), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_architecture(writer: gguf.GGUFWriter, config: LlamaConfig, name: str) -> None:
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, rows: int) -> None:
    """`rows`: of the embedding, each of which must have a piece.

    `bos` names the end token: llama.cpp would take id 11 for a missing one. It is never added to a prompt.
    """
    saved = json.loads((folder / "tokenizer.json").read_text())
    pieces = sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].get)
    added = [token["content"] for token in saved["added_tokens"] if token["id"] >= len(pieces)]
    special, pieces = {*SPECIAL_TOKENS, *added}, [*pieces, *added]
    kinds = [gguf.TokenType.CONTROL if piece in special else gguf.TokenType.NORMAL for piece in pieces]
    kinds += [gguf.TokenType.UNUSED] * (rows - len(pieces))
    pieces += [f"[PAD{number}]" for number in range(len(pieces), rows)]
    end = SPECIAL_TOKENS.index("<|end|>")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in saved["model"]["merges"]])
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(json.loads((folder / "tokenizer_config.json").read_text())["chat_template"])


def gguf_name(name: str) -> str:
    """`lm_head` is not among the names: the embedding is tied."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"blk.{layer}.{LAYER_TENSORS[part]}.weight"


def permuted(name: str, tensor: NDArray[np.float32], config: LlamaConfig) -> NDArray[np.float32]:
    """Hugging Face pairs rotary dimension i with i + d/2, llama.cpp's Llama 2i with 2i + 1."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
        name.split(".")[-2]
    )
    return tensor if heads is None else interleave(tensor, heads)


def add_tensor(writer: gguf.GGUFWriter, name: str, tensor: NDArray[np.float32], kind: str) -> None:
    """Norm gains stay in float32, as in every GGUF."""
    if tensor.ndim == 1:
        writer.add_tensor(name, tensor)
        return
    stored = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(tensor, stored), raw_dtype=stored)
