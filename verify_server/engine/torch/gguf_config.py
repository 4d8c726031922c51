"""The transformers config of a GGUF file, by its metadata; what would be read wrongly is refused by name.

transformers reads GGUF files as well, but parses one five times (30 s for a vocabulary of 49k ids) and leaves out RoPE
factors, windows and soft caps without a word. Here a file is read once, and each of its keys must be understood.
Names follow llama.cpp's `convert_hf_to_gguf.py`.
"""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gguf
from transformers import AutoConfig

from opensled.core.errors import UnsupportedModel
from opensled.models.gguf_file import Head, read_head
from verify_server.engine.torch.model_sizes import MAX_PARTS
from verify_server.text.gguf_ends import eos_ids

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
}
OPTIONAL = {"attention.head_count_kv", "attention.key_length"}
# The same, of some architectures only; what a file leaves out of them is transformers' default, and llama.cpp's.
MORE_KEYS = {
    "gemma2": {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "gemma3": {
        "attention.sliding_window": "sliding_window",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "granite": {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
    "phi3": {"attention.sliding_window": "sliding_window"},
}
# Keys that are read below, and those that change nothing.
OTHER_KEYS = {
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "tensor_data_layout",
    "vocab_size",
}
OTHER_ENGINE = "use --engine llamacpp, or the model's safetensors"


def _plain(head: Head, config: Config) -> Config:
    return config


def _llama(head: Head, config: Config) -> Config:
    biased = {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_down.bias"}
    return config | {name: tensor in head.tensors for name, tensor in biased.items()}


def _granite(head: Head, config: Config) -> Config:
    """Without a scale of its own its attention has the usual one, which is not transformers' default."""
    return {"attention_multiplier": config["head_dim"] ** -0.5} | _llama(head, config)


def _gemma2(head: Head, config: Config) -> Config:
    return config | {"query_pre_attn_scalar": _query_scale(config, layers=46)}


def _gemma3(head: Head, config: Config) -> Config:
    """Its sliding layers have RoPE of their own, never scaled."""
    if "sliding_window" not in config:
        raise _Unread("states no sliding window")
    local = {"rope_type": "default", "rope_theta": head.metadata.get("gemma3.rope.freq_base_swa", 10_000.0)}
    return config | {
        "query_pre_attn_scalar": _query_scale(config, layers=62),
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
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
    "granite": ("granite", _granite),
    "phi3": ("phi3", _plain),
    "smollm3": ("smollm3", _llama),
}
PARTLY_ROTATED = {"phi3"}  # architectures whose heads may be rotated in part


def read_config(path: Path) -> Any:
    """The transformers config of a GGUF file. Raises NotFound or UnsupportedModel."""
    head = read_head(path)
    architecture = _known(path, head)
    try:
        _check_keys(head, architecture)
        _check_kinds(head)
        model_type, more = ARCHITECTURES[architecture]
        return AutoConfig.for_model(model_type, **more(head, _read_metadata(head, architecture)))
    except KeyError as error:
        raise UnsupportedModel(f"{path} lacks {error.args[0]}; download it again") from error
    except _Unread as error:
        raise UnsupportedModel(f"{path} {error}; {OTHER_ENGINE}") from error
    except Exception as error:  # transformers validates configs with errors of many kinds
        raise UnsupportedModel(f"{path} states what no {architecture} can have: {error}") from error


class _Unread(Exception):
    """What the file has and engine torch does not read from GGUF."""


def _known(path: Path, head: Head) -> str:
    architecture = head.metadata.get("general.architecture", "")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{path} has architecture {architecture!r}; from GGUF engine torch reads {', '.join(ARCHITECTURES)}; "
            f"{OTHER_ENGINE}"
        )
    return str(architecture)


def _check_keys(head: Head, architecture: str) -> None:
    """A key that is not read here would change the logits, unless its value is 0, false or empty."""
    known = OTHER_KEYS | KEYS.keys() | MORE_KEYS.get(architecture, {}).keys()
    for key, value in head.metadata.items():
        owner, _, rest = key.partition(".")
        if owner == architecture and rest not in known and value:
            raise _Unread(f"sets {key}, which engine torch does not read from GGUF")
    if head.metadata.get("split.count", 0) > 1:
        raise _Unread("is a part of a model only (join them: llama-gguf-split --merge)")


def _check_kinds(head: Head) -> None:
    plain = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
    readable = plain | gguf.quants._type_traits.keys()
    kinds = {info.kind for info in head.tensors.values()} - {int(kind) for kind in readable}
    if kinds:
        names = {int(kind): kind.name for kind in gguf.GGMLQuantizationType}
        strange = ", ".join(names.get(kind, f"type {kind}") for kind in sorted(kinds))
        raise _Unread(f"holds {strange}, which gguf {version('gguf')} cannot dequantize")


def _read_metadata(head: Head, architecture: str) -> Config:
    """What the metadata says, and nothing of transformers' defaults for ids."""
    config: Config = {}
    for key, name in (KEYS | MORE_KEYS.get(architecture, {})).items():
        stated = f"{architecture}.{key}"
        if key in KEYS.keys() - OPTIONAL or stated in head.metadata:
            config[name] = head.metadata[stated]
    if not 1 <= config["num_hidden_layers"] <= MAX_PARTS:
        raise _Unread(f"states {config['num_hidden_layers']} layers, not 1 to {MAX_PARTS}")
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    size = config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    if head.metadata.get(f"{architecture}.attention.value_length", size) != size:
        raise _Unread("has values of another length than its keys")
    return config | {
        "rope_parameters": _rope(head, architecture, size),
        "vocab_size": head.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in head.tensors,
        "bos_token_id": head.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(eos_ids(head.metadata)) or None,
        "pad_token_id": None,  # of use in training only
    }


def _rope(head: Head, architecture: str, size: int) -> Config:
    """Plain or linear; a factor without a type is linear, as in llama.cpp."""
    stated = {
        key: head.metadata.get(f"{architecture}.rope.{key}")
        for key in ("freq_base", "dimension_count", "scaling.type", "scaling.factor")
    }
    part = (stated["dimension_count"] or size) / size
    if part != 1 and architecture not in PARTLY_ROTATED:
        raise _Unread(f"rotates a part of its heads ({part:.2f})")
    rope = {"rope_theta": stated["freq_base"] or 10_000.0, "partial_rotary_factor": part}
    kind = stated["scaling.type"] or "linear"
    if kind not in ("none", "linear") or any(name.startswith("rope_factors") for name in head.tensors):
        raise _Unread(f"scales its RoPE ({kind}), which is not read from GGUF")
    factor = stated["scaling.factor"] if kind == "linear" else None
    return rope | ({"rope_type": "linear", "factor": factor} if factor else {"rope_type": "default"})
