"""A draft head as two files: `head.json` says what it is and whose, `head.safetensors` has its weights.

Matrices are kept as int8 with a float32 scale for each row of output, or as two numbers of 4 bits to a byte with a
float16 scale for each group of a row; vectors as float32, and the draft vocabulary as the target's ids. The embedding
and the output layer are the target's, and in no file here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PretrainedConfig

from opensled.core.errors import NotFound, UnsupportedModel, UsageError, first_line
from verify_server.drafting.heads import HEADS
from verify_server.drafting.heads.base import DraftHead, HeadShape

ABOUT, WEIGHTS = "head.json", "head.safetensors"
FORMAT = 1
DRAFT_IDS, SCALES = "draft_ids", ".scales"
GROUP, HALF = 32, 8  # of 4 bits: weights that share a scale; a number q stands for (q - HALF) * scale
WIDEST = torch.finfo(torch.float32).max  # base of a rotation
# What must be the same in the target that a head was trained for.
OF_TARGET = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


@dataclass(frozen=True)
class HeadFile:
    """A head in evaluation mode, float32, and what its files say."""

    folder: Path
    head: DraftHead
    draft_ids: np.ndarray  # int32 [V]: the target's id of each id that the head can draft, ascending
    target: str  # its name
    vocabulary: str  # fingerprint of the target's (opensled/core/vocabulary.py)
    config: str  # see `config_digest`
    training: Mapping[str, Any] = field(default_factory=dict)  # how it was trained and measured, for people


def config_digest(config: PretrainedConfig) -> str:
    """sha256 over the sizes of a target, hex."""
    text = config.get_text_config(decoder=True)
    sizes = {name: getattr(text, name, None) for name in OF_TARGET}
    return hashlib.sha256(json.dumps(sizes, sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> HeadFile:
    """Raises NotFound and UnsupportedModel."""
    about = _about(folder)
    head = _build(about, folder)
    tensors = _tensors(folder)
    try:
        ids = _draft_ids(tensors.pop(DRAFT_IDS, None), head.shape.vocabulary)
        # Only now, from what the file really holds, do the weights take memory.
        head.load_state_dict(_unpack(tensors), assign=True)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedModel(
            f"{folder / WEIGHTS} does not fit {ABOUT}: {reason[:300]}; {_AGAIN}"
        ) from error
    target, vocabulary, config = (str(about.get(name, "")) for name in ("target", "vocabulary", "config"))
    return HeadFile(folder, head.eval(), ids, target, vocabulary, config, about.get("training", {}))


_AGAIN = "copy the head's folder again, or train it anew"


def _unpack(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Raises ValueError for what lab/training/heads/head_writer.py does not make."""
    return {
        name: _weight(name, tensor, tensors.get(name + SCALES))
        for name, tensor in tensors.items()
        if not name.endswith(SCALES)
    }


def _weight(name: str, tensor: Tensor, scales: Tensor | None) -> Tensor:
    if tensor.dtype == torch.uint8 and scales is not None:
        return _of_fours(name, tensor, scales)
    known = torch.float32 if scales is None else torch.int8
    if tensor.dtype != known or (scales is not None and scales.shape != tensor.shape[:-1]):
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)} without the scales of its rows")
    # Copied: what is read here lies in the file, which may change under a running server.
    return _finite(name, tensor.clone() if scales is None else tensor.float() * scales[..., None])


def _of_fours(name: str, numbers: Tensor, scales: Tensor) -> Tensor:
    """Raises ValueError."""
    groups = numbers.unflatten(
        -1, (-1, GROUP // 2)
    )  # a RuntimeError for other sizes, as load_state_dict has it
    if scales.dtype != torch.float16 or groups.shape[:-1] != scales.shape:
        raise ValueError(f"{name} is 4 bits {list(numbers.shape)} without the scales of its groups")
    steps = torch.stack([groups & 15, groups >> 4], -1).flatten(-2)
    return _finite(name, ((steps.float() - HALF) * scales.float()[..., None]).flatten(-2))


def _finite(name: str, weight: Tensor) -> Tensor:
    """Raises ValueError."""
    if not weight.isfinite().all():
        raise ValueError(f"not all numbers of {name} are finite")
    return weight


def _draft_ids(ids: Tensor | None, count: int) -> np.ndarray:
    """Raises ValueError."""
    if ids is None or ids.shape != (count,) or ids.dtype != torch.int32:
        raise ValueError(f"it does not say which {count} ids the head drafts")
    if ids[0] < 0 or (ids[1:] <= ids[:-1]).any():
        raise ValueError("the ids that the head drafts are not ascending from 0 on")
    found: np.ndarray = ids.numpy().copy()
    return found


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    try:
        about = json.loads(path.read_text())
    except OSError as error:
        raise NotFound(
            f"{folder} holds no draft head: {path} cannot be read ({error.strerror})", "head"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {first_line(error)}; {_AGAIN}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UnsupportedModel(f"{path} is not of format {FORMAT}, the only one known here; {_AGAIN}")
    return about


def _build(about: dict[str, Any], folder: Path) -> DraftHead:
    """The head without weights: whatever sizes a file claims, they take no memory."""
    try:
        shape = _shape(about["shape"])
        with torch.device("meta"):
            head: DraftHead = HEADS.get(shape.kind)(shape)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UnsupportedModel(
            f"{folder / ABOUT}: its shape is not that of a head: {first_line(error)}"
        ) from error
    except (UsageError, UnsupportedModel) as error:
        raise UnsupportedModel(f"{folder / ABOUT}: {error}") from error
    return head


def _shape(values: dict[str, Any]) -> HeadShape:
    """Raises KeyError, TypeError and ValueError."""
    shape = HeadShape(**{**values, "taps": tuple(values["taps"])})
    if type(shape.kind) is not str:
        raise ValueError(f"kind {shape.kind!r}")
    sizes = [
        getattr(shape, each.name) for each in fields(shape) if each.type == "int" and each.name != "markov"
    ]
    if not all(type(size) is int and size > 0 for size in sizes) or shape.heads % shape.kv_heads:
        raise ValueError(f"sizes {sizes}")
    if shape.head_size % 2:
        raise ValueError(f"head_size {shape.head_size}; it must be even, for its halves are turned")
    if not shape.taps or not all(type(tap) is int and tap >= 0 for tap in shape.taps):
        raise ValueError(f"taps {shape.taps}")
    if type(shape.markov) is not int or shape.markov < 0:
        raise ValueError(f"markov {shape.markov!r}")
    if type(shape.rope_theta) not in (int, float) or not 0 < shape.rope_theta <= WIDEST:
        raise ValueError(f"rope_theta {shape.rope_theta!r}")
    return shape


def _tensors(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise NotFound(f"the head in {folder} lacks its weights: {path} is missing; {_AGAIN}", "head")
    try:
        found: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UnsupportedModel(f"{path} cannot be read: {first_line(error)}; {_AGAIN}") from error
    return found
