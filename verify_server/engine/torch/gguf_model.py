"""The weights of a GGUF file in a transformers model, dequantized by gguf, llama.cpp's own package.

Layouts follow llama.cpp's `convert_hf_to_gguf.py`; every tensor of the file must find its place, and every parameter
of the model its tensor.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from opensled.core.errors import UnsupportedModel
from opensled.models.gguf_file import TensorInfo, read_head
from verify_server.engine.torch.gguf_config import OTHER_ENGINE

ROPE_FACTORS = "rope_freqs.weight"  # of Llama 3.1: what each frequency is divided by
# llama.cpp pairs the rotary dimensions 2i and 2i + 1 of their queries and keys, transformers i and i + half.
PAIRED = {"llama", "granite", "smollm3"}
WIDE = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F64}


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
        stored = f"{names.get_name(stem)}{dot}{ending}"
        values = _values(path, stored, left.pop(stored, None), tuple(parameter.shape))
        parameter.copy_(torch.from_numpy(_layout(architecture, name, values, network.config)))
    if factors := left.pop(ROPE_FACTORS, None):
        for frequencies in _frequencies(network):
            values = _values(path, ROPE_FACTORS, factors, tuple(frequencies.shape))
            frequencies /= torch.from_numpy(values).to(frequencies)
    if left:
        raise UnsupportedModel(f"{path} holds {min(left)}, which no {architecture} here has; {OTHER_ENGINE}")


def _arch(architecture: str) -> Any:
    return next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)


def _values(path: Path, name: str, info: TensorInfo | None, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of the file, which must have that shape, as float32."""
    if info is None:
        raise UnsupportedModel(f"{path} lacks {name}; download it again, or {OTHER_ENGINE}")
    if info.shape != shape:
        raise UnsupportedModel(f"{path} holds {name} as {info.shape}, not as {shape}; {OTHER_ENGINE}")
    kind = gguf.GGMLQuantizationType(info.kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    *rows, columns = shape
    try:
        stored = np.memmap(path, np.uint8, "r", info.start, (*rows, columns // block * size))
    except ValueError as error:  # it would end behind the file
        raise UnsupportedModel(f"{path} ends in the middle of {name}; download it again") from error
    return np.array(gguf.dequantize(stored, kind), np.float32)


def _layout(architecture: str, name: str, values: np.ndarray, config: Any) -> np.ndarray:
    """In transformers' layout; llama.cpp's gains of Gemma hold 1 more."""
    if architecture.startswith("gemma") and "norm" in name:
        return values - 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
        name.split(".")[-2]
    )
    if architecture not in PAIRED or heads is None:
        return values
    by_pair = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(by_pair.swapaxes(1, 2).reshape(values.shape))


def _frequencies(network: torch.nn.Module) -> Iterator[torch.Tensor]:
    for name, buffer in network.named_buffers():
        if name.endswith("inv_freq"):
            yield buffer
