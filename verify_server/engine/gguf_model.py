"""A GGUF file as a transformers model: config by its metadata, weights dequantized by gguf, llama.cpp's own package.

transformers reads GGUF files as well, but parses one five times (30 s for a vocabulary of 49k ids) and leaves out RoPE
factors, windows and soft caps without a word. Here a file is read once, and everything in it must find its place.
Names and layouts follow llama.cpp's `convert_hf_to_gguf.py`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig

from opensled.errors import UnsupportedModel
from verify_server.text.gguf_file import Head, TensorInfo, read_head

Config = dict[str, Any]

# Key of the metadata, behind the architecture's name -> name in transformers' configs.
KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
    "tokenizer.ggml.padding_token_id": "pad_token_id",
}
ROPE_FACTORS = "rope_freqs.weight"  # of Llama 3.1: what each frequency is divided by
WIDE = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F64}


def _plain(head: Head, config: Config) -> Config:
    return config


def _llama(head: Head, config: Config) -> Config:
    biased = "blk.0.attn_q.bias" in head.tensors
    return config | {"attention_bias": biased}


def _gemma2(head: Head, config: Config) -> Config:
    return config | {"query_pre_attn_scalar": _query_scale(config, layers=46)}


def _gemma3(head: Head, config: Config) -> Config:
    return config | {
        "query_pre_attn_scalar": _query_scale(config, layers=62),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config["rope_parameters"]["rope_theta"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    }


def _query_scale(config: Config, layers: int) -> int:
    """llama.cpp knows the one size of each Gemma that scales by other than the head's size by its layers."""
    if config["num_hidden_layers"] == layers:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


# Architecture -> transformers' model type, and what its config needs besides. Each was compared with llama.cpp's logits
# (tests/test_gguf_torch.py): the self-test cannot see what is read wrongly.
ARCHITECTURES: dict[str, tuple[str, Callable[[Head, Config], Config]]] = {
    "llama": ("llama", _llama),
    "qwen2": ("qwen2", _plain),
    "qwen3": ("qwen3", _plain),
    "gemma2": ("gemma2", _gemma2),
    "gemma3": ("gemma3_text", _gemma3),
    "phi3": ("phi3", _plain),
}


def read_config(path: Path) -> Any:
    """The transformers config of a GGUF file. Raises NotFound or UnsupportedModel."""
    head = read_head(path)
    architecture = _readable(path, head)
    model_type, more = ARCHITECTURES[architecture]
    config = _stated(head.metadata, architecture)
    config["vocab_size"] = head.tensors["token_embd.weight"].shape[0]
    config["tie_word_embeddings"] = "output.weight" not in head.tensors
    return AutoConfig.for_model(model_type, **more(head, config))


def _readable(path: Path, head: Head) -> str:
    """The architecture, if all that the file holds can be read here."""
    other = "use --engine llamacpp, or the model's safetensors"
    architecture = head.metadata.get("general.architecture", "")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(
            f"{path} has architecture {architecture!r}; from GGUF engine torch reads {known}; {other}"
        )
    scaling = head.metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or any(name.startswith("rope_factors") for name in head.tensors):
        raise UnsupportedModel(f"{path} scales its RoPE ({scaling}), which is not read from GGUF; {other}")
    kinds = {gguf.GGMLQuantizationType(info.kind) for info in head.tensors.values()}
    if strange := sorted(kind.name for kind in kinds - _dequantizable()):
        raise UnsupportedModel(
            f"{path} holds {', '.join(strange)}, which gguf {_version()} cannot dequantize; {other}"
        )
    return architecture


def _dequantizable() -> set[gguf.GGMLQuantizationType]:
    plain = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
    return plain | set(gguf.quants._type_traits)


def _version() -> str:
    from importlib.metadata import version

    return version("gguf")


def _stated(metadata: dict[str, Any], architecture: str) -> Config:
    config = {name: metadata[key] for key, name in TOKENS.items() if key in metadata}
    for key, name in KEYS.items():
        if (value := metadata.get(f"{architecture}.{key}")) is not None:
            config[name] = value
    size = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": metadata.get(f"{architecture}.rope.freq_base", 10_000.0),
        "partial_rotary_factor": metadata.get(f"{architecture}.rope.dimension_count", size) / size,
    }
    return config


def is_wide(path: Path) -> bool:
    """Whether a matrix of the file has more than 16 bits a weight."""
    return any(info.kind in WIDE and len(info.shape) > 1 for info in read_head(path).tensors.values())


@torch.no_grad()
def fill(network: torch.nn.Module, path: Path) -> None:
    """Copies the file's weights into a network made by its config. Raises UnsupportedModel if they do not match it."""
    head = read_head(path)
    architecture = head.metadata["general.architecture"]
    names = gguf.get_tensor_name_map(_arch(architecture), network.config.num_hidden_layers)
    left = dict(head.tensors)
    for name, parameter in network.named_parameters():
        stem, dot, ending = name.rpartition(".")
        info = left.pop(f"{names.get_name(stem)}{dot}{ending}", None)
        if info is None:
            raise UnsupportedModel(f"{path} lacks {name}, which a {architecture} has; download it again")
        values = _layout(architecture, name, _values(path, info), network.config)
        parameter.copy_(torch.from_numpy(values))
    if factors := left.pop(ROPE_FACTORS, None):
        for frequencies in _frequencies(network):
            frequencies /= torch.from_numpy(_values(path, factors)).to(frequencies)
    if left:
        raise UnsupportedModel(f"{path} holds {min(left)}, which no {architecture} here has")


def _arch(architecture: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _values(path: Path, info: TensorInfo) -> np.ndarray:
    """float32, in the tensor's shape."""
    kind = gguf.GGMLQuantizationType(info.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    *rows, columns = info.shape
    shape = (*rows, columns // block * size)
    stored = np.memmap(path, np.uint8, "r", info.start, shape)
    return np.array(gguf.dequantize(stored, kind), np.float32)


def _layout(architecture: str, name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """In transformers' layout: llama.cpp pairs a Llama's rotary dimensions 2i and 2i + 1, and Gemma's gains hold 1 more."""
    if architecture.startswith("gemma") and "norm" in name:
        return values - 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
        name.split(".")[-2]
    )
    if architecture != "llama" or heads is None:
        return values
    by_pair = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(by_pair.swapaxes(1, 2).reshape(values.shape))


def _frequencies(network: torch.nn.Module) -> Iterator[torch.Tensor]:
    for name, buffer in network.named_buffers():
        if name.endswith("inv_freq"):
            yield buffer
