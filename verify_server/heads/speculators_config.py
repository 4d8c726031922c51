"""`config.json` of a head in the format of the `speculators` package (https://github.com/vllm-project/speculators).

Everything that it says is checked before a tensor is read; what this server does not compute is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import finfo, float32
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from opensled.errors import NotFound, UnsupportedModel, first_line
from verify_server.heads.eagle3 import Eagle3Shape, Frequencies

CONFIG = "config.json"
RUNS = ("eagle3",)
# Rotations whose frequencies do not depend on how long a text has become
ROTATIONS = ("default", "linear", "llama3", "yarn")
# and what each may say of itself
FACTORS = {
    *(
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "attention_factor",
    ),
    *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
TAPS = 3  # hidden states, where the file does not name them
LARGEST = 1 << 24  # of any size that a file states
AGAIN = "copy the head's folder again"
_CONVERT = "speculators convert {} --algorithm eagle3 --verifier TARGET"


@dataclass(frozen=True)
class SpeculatorsConfig:
    """What a head of type eagle3 says of itself."""

    shape: Eagle3Shape  # as if it had an embedding of its own
    places: tuple[int, ...] | None  # hidden states of the target that it reads; None = see `places_in`
    frequencies: Frequencies
    verifier: str  # the target that it was trained for; "" = it does not say

    def places_in(self, layers: int) -> tuple[int, ...]:
        """Hidden states that it reads of a target with so many layers, as `HiddenTap` numbers them."""
        return self.places if self.places is not None else (2, layers // 2, layers - 3)


def read_config(folder: Path) -> SpeculatorsConfig:
    """Raises NotFound and UnsupportedModel."""
    path = folder / CONFIG
    values = _json(path)
    _check_type(values, folder)
    try:
        return _understood(values)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else first_line(error)
        raise UnsupportedModel(f"{path} is not that of an eagle3 head: {reason}; {AGAIN}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except OSError as error:
        raise NotFound(
            f"{path.parent} holds no published head: {path} cannot be read ({error.strerror})", "head"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is no JSON: {first_line(error)}; {AGAIN}") from error
    if not isinstance(values, dict):
        raise UnsupportedModel(f"{path} is no JSON object; {AGAIN}")
    return values


def _check_type(values: Mapping[str, Any], folder: Path) -> None:
    kind = values.get("speculators_model_type")
    if kind in RUNS:
        return
    if kind is not None:
        raise UnsupportedModel(
            f"the head in {folder} is of type {str(kind)[:40]!r}; of the published types this server runs "
            f"{', '.join(RUNS)}. Take a head of that type for this target, or train one with `opensled train-head`"
        )
    raise UnsupportedModel(
        f"{folder / CONFIG} names no speculators_model_type, so the folder is no head of the speculators format. If it "
        f"is a raw EAGLE-3 head, convert it: {_CONVERT.format(folder)}"
    )


def _understood(values: Mapping[str, Any]) -> SpeculatorsConfig:
    """Raises KeyError, TypeError and ValueError."""
    layer = values["transformer_layer_config"]
    if not isinstance(layer, dict):
        raise TypeError("transformer_layer_config is no JSON object")
    places = _places(values.get("eagle_aux_hidden_state_layer_ids"))
    shape = _shape(values, layer, TAPS if places is None else len(places))
    _check_layer(layer)
    _check_widths(values, shape)
    return SpeculatorsConfig(shape, places, _frequencies(layer, shape), _verifier(values))


def _places(ids: Any) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(id) is int and 0 <= id < LARGEST for id in ids):
        raise ValueError(f"eagle_aux_hidden_state_layer_ids {str(ids)[:60]}")
    if len(set(ids)) != len(ids):
        raise ValueError(f"eagle_aux_hidden_state_layer_ids {str(ids)[:60]} names a layer twice")
    return tuple(ids)


def _shape(values: Mapping[str, Any], layer: Mapping[str, Any], taps: int) -> Eagle3Shape:
    kind = layer.get("model_type", "qwen3")
    if kind not in ("llama", "qwen3"):
        raise ValueError(f"its layer is of {str(kind)[:40]!r}; known are llama and qwen3")
    heads, size = _size(layer, "num_attention_heads"), _size(layer, "hidden_size")
    kv_heads = _size(layer, "num_key_value_heads", heads)
    # What each family takes where a file is silent; the package leaves out what is the default.
    head_size = _size(layer, "head_dim", 128 if kind == "qwen3" else size // heads)
    if heads % kv_heads or head_size % 2:
        raise ValueError(f"{heads} heads of {head_size} over {kv_heads} of keys")
    bias = _flag(layer, "attention_bias")
    return Eagle3Shape(
        taps,
        size,
        heads,
        kv_heads,
        head_size,
        _size(layer, "intermediate_size"),
        _size(values, "draft_vocab_size"),
        _size(layer, "vocab_size"),
        _number(layer, "rms_norm_eps", 1e-6, 1.0),
        query_norms=kind == "qwen3",
        attention_bias=bias,
        output_bias=bias,
        inner_bias=kind == "llama" and _flag(layer, "mlp_bias"),
        **{
            name: _flag(values, name)
            for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
        },
    )


def _check_layer(layer: Mapping[str, Any]) -> None:
    if _size(layer, "num_hidden_layers", 1) != 1:
        raise ValueError(f"it has {layer['num_hidden_layers']} layers; this server runs heads of one")
    if layer.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {str(layer['hidden_act'])[:40]!r}; known is silu")
    kinds = layer.get("layer_types")
    first = kinds[0] if isinstance(kinds, list) and kinds else "full_attention"
    if first != "full_attention" or layer.get("use_sliding_window"):
        raise ValueError("its layer attends to a sliding window, which this server does not compute")


def _check_widths(values: Mapping[str, Any], shape: Eagle3Shape) -> None:
    if shape.norm_before_fc and shape.fc_norm:
        raise ValueError("norm_before_fc and fc_norm exclude each other")
    if shape.vocabulary > shape.target_vocabulary:
        raise ValueError(f"it drafts {shape.vocabulary} ids of a vocabulary of {shape.target_vocabulary}")
    wide = values.get("target_hidden_size")
    if wide is not None and wide != shape.size:
        raise ValueError(f"target_hidden_size {str(wide)[:20]} beside a hidden_size of {shape.size}")


def _frequencies(layer: Mapping[str, Any], shape: Eagle3Shape) -> Frequencies:
    """As transformers computes them. Raises ValueError."""
    rotation = _rotation(layer)
    try:
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=shape.heads * shape.head_size,
                num_attention_heads=shape.heads,
                head_dim=shape.head_size,
                max_position_embeddings=_size(layer, "max_position_embeddings", 2048),
                rope_parameters=rotation,
            )
        )
        each, scale = rotary.inv_freq, float(rotary.attention_scaling)
    except Exception as error:  # transformers checks little of what a file says here
        raise ValueError(f"its rotation: {first_line(error)}") from error
    if each.shape != (shape.head_size // 2,) or not each.isfinite().all() or not 0 < scale < LARGEST:
        raise ValueError("its rotation gives no finite frequencies")
    return Frequencies(each, scale)


def _rotation(layer: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters` of newer files; older ones have `rope_theta` and `rope_scaling`. Raises ValueError."""
    found = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ValueError(f"its rotation is {str(found)[:40]!r}")
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in ROTATIONS:
        raise ValueError(f"a rotation {str(kind)[:40]!r}; known are {', '.join(ROTATIONS)}")
    if strange := found.keys() - FACTORS - {"rope_type", "type", "rope_theta"}:
        raise ValueError(f"a rotation with {min(strange)[:40]!r}, which this server does not know")
    base = _number(layer, "rope_theta", 10_000.0, finfo(float32).max)
    own = {name: found[name] for name in FACTORS & found.keys()}
    return {**own, "rope_type": kind, "rope_theta": _number(found, "rope_theta", base, finfo(float32).max)}


def _verifier(values: Mapping[str, Any]) -> str:
    about = values.get("speculators_config")
    verifier = about.get("verifier") if isinstance(about, dict) else None
    name = verifier.get("name_or_path") if isinstance(verifier, dict) else None
    return name if isinstance(name, str) else ""


def _size(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = values.get(name)
    if found is None and default is not None:
        return default
    found = values[name]
    if type(found) is not int or not 0 < found <= LARGEST:
        raise ValueError(f"{name} {str(found)[:40]}")
    return found


def _number(values: Mapping[str, Any], name: str, default: float, most: float) -> float:
    found = values.get(name)
    if found is None:
        return default
    if type(found) not in (int, float) or not 0 < found <= most:
        raise ValueError(f"{name} {str(found)[:40]}")
    return float(found)


def _flag(values: Mapping[str, Any], name: str) -> bool:
    found = values.get(name)
    if found is not None and type(found) is not bool:
        raise ValueError(f"{name} {str(found)[:40]}, which is neither true nor false")
    return bool(found)
