"""The GGUF form of a model that is shipped as safetensors: the same numbers in another order.

Its head has the keys, the tokenizer and the list of tensors; each tensor is computed from what safetensors hold.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lab.shipped.safetensors_form import EIGHTS, TensorFile, WeightsFile, eights
from opensled.models.draft_assembly import tensor_bytes
from opensled.models.gguf_file import Head, TensorInfo, read_head

# Parts of a Llama's layer: their names in safetensors -> in GGUF.
LAYER_TENSORS = {
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
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
_PARTS = {ours: theirs for theirs, ours in LAYER_TENSORS.items()}
_HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}


def first_number(path: Path) -> int:
    """The byte of a GGUF file that its first tensor begins at."""
    return min(tensor.start for tensor in read_head(path).tensors.values())


def join(path: Path, folder: Path, sources: Sequence[WeightsFile]) -> bytes:
    """The whole file, of its head in `path`. Raises ValueError for tensors that do not fit."""
    content, head = bytearray(path.read_bytes()), read_head(path)
    weights = [TensorFile(folder / source.file, source.prefix) for source in sources]
    for name, info in head.tensors.items():
        content += bytes(max(0, info.start - len(content)))  # up to a multiple of the alignment
        content += _encode(name, info, _order_rows(name, _find_weights(name, weights), head))
    return bytes(content)


def _find_weights(name: str, weights: list[TensorFile]) -> np.ndarray:
    """Raises ValueError."""
    known = original_name(name)
    for each in weights:
        if known in each:
            return each[known]
    raise ValueError(f"no weights hold {known}")


def original_name(name: str) -> str:
    """The name in safetensors of a Llama's tensor in GGUF. Raises KeyError for any other."""
    parts = name.removesuffix(".weight").split(".")
    if len(parts) == 1:
        return f"{_OUTSIDE[parts[0]]}.weight"
    return f"model.layers.{parts[1]}.{_PARTS[parts[2]]}.weight"


def _order_rows(name: str, values: np.ndarray, head: Head) -> np.ndarray:
    key = _HEADS.get(name.split(".")[-2])
    return values if key is None else interleave(values, head.metadata[key])


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys: Hugging Face pairs rotary dimension i with i + d/2, llama.cpp's Llama 2i with 2i + 1."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _encode(name: str, info: TensorInfo, values: np.ndarray) -> bytes:
    """Raises ValueError."""
    if values.shape != info.shape or info.kind not in _KINDS:
        raise ValueError(f"{name} has the shape {values.shape}, not {info.shape}, or type {info.kind}")
    content: bytes = _KINDS[info.kind](values)
    assert len(content) == tensor_bytes(info)
    return content


def _blocks(values: np.ndarray) -> bytes:
    """Q8_0: each scale before its numbers."""
    numbers, scales = eights(values.reshape(-1, EIGHTS))
    return np.concatenate([scales.view(np.uint8), numbers.view(np.uint8)], axis=1).tobytes()


# ggml's number of a type -> the bytes of a tensor in it: F32, F16, Q8_0.
_KINDS = {
    0: lambda values: values.astype("<f4").tobytes(),
    1: lambda values: values.astype("<f2").tobytes(),
    8: _blocks,
}
