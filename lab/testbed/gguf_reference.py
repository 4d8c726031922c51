"""The reference for a GGUF file of a Llama: plain `transformers` on the file's dequantized weights.

Like the reference that it extends it imports nothing of the product: the names and layouts of the weights are written
down here a second time, `gguf` (llama.cpp's own package) dequantizes them, and llama.cpp cuts texts into tokens.
transformers' own reading of GGUF files gives the same weights, but parses a file five times (30 s).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from llama_cpp import llama_model_default_params
from llama_cpp._internals import LlamaModel
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template
from transformers.utils.logging import disable_progress_bar

from lab.testbed.reference import Reference


class GgufReference(Reference):
    """The target of a GGUF file, run plainly; only architecture `llama`."""

    def __init__(self, path: Path, dtype: str = "float32") -> None:
        disable_progress_bar()
        reader = gguf.GGUFReader(path)
        fields = {name: reader.fields[name] for name in reader.fields if not name.startswith(_LISTS)}
        self.metadata: dict[str, Any] = {name: field.contents() for name, field in fields.items()}
        config = _config(self.metadata)
        weights = _weights(reader, config)
        self.model = LlamaForCausalLM.from_pretrained(
            None, config=config, state_dict=weights, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self.eos_ids = frozenset([config.eos_token_id])
        self.context_length = config.max_position_embeddings
        params = llama_model_default_params()
        params.vocab_only = True
        self._words = LlamaModel(path_model=str(path), params=params, verbose=False)

    def encode(self, text: str) -> list[int]:
        return list(self._words.tokenize(text.encode(), add_bos=False, special=True))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._words.detokenize(list(ids)).decode("utf-8", "replace"))

    def render_chat(self, messages: Iterable[Mapping[str, str]]) -> list[int]:
        texts, _ = render_jinja_template(
            [list(messages)],
            chat_template=self.metadata["tokenizer.chat_template"],
            add_generation_prompt=True,
        )
        return self.encode(texts[0])


# Fields of as many entries as the vocabulary has tokens; llama.cpp reads them, and faster.
_LISTS = (
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores",
)


def _config(metadata: Mapping[str, Any]) -> LlamaConfig:
    def of(name: str) -> Any:
        return metadata[f"llama.{name}"]

    return LlamaConfig(
        vocab_size=of("vocab_size"),
        hidden_size=of("embedding_length"),
        intermediate_size=of("feed_forward_length"),
        num_hidden_layers=of("block_count"),
        num_attention_heads=of("attention.head_count"),
        num_key_value_heads=of("attention.head_count_kv"),
        max_position_embeddings=of("context_length"),
        rms_norm_eps=of("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": of("rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=metadata["tokenizer.ggml.bos_token_id"],
        eos_token_id=metadata["tokenizer.ggml.eos_token_id"],
    )


# Part of a parameter's name in transformers -> in GGUF.
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "model.layers": "blk",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _weights(reader: gguf.GGUFReader, config: LlamaConfig) -> dict[str, torch.Tensor]:
    """Every parameter of the model by its name, float32; a tensor of the file that has no place is an error."""
    stored = {tensor.name: tensor for tensor in reader.tensors}
    with torch.device("meta"):
        names = [name for name, _ in LlamaForCausalLM(config).named_parameters()]
    weights = {name: _dequantized(stored.pop(_stored_name(name)), config) for name in names}
    if stored:
        raise ValueError(f"tensors without a place: {', '.join(stored)}")
    return weights


def _stored_name(name: str) -> str:
    for ours, theirs in _NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _dequantized(tensor: gguf.ReaderTensor, config: LlamaConfig) -> torch.Tensor:
    """llama.cpp keeps the two halves of a rotated pair next to each other, transformers half a head apart."""
    values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    count = heads.get(tensor.name.split(".")[-2])
    if count:
        pairs = values.reshape(count, -1, 2, values.shape[1])
        values = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(values.shape)
    return torch.from_numpy(np.ascontiguousarray(values))
