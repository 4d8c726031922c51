"""The ONNX form of a draft model, filled in from its GGUF file: the graph is shipped without its numbers.

The graph is one of the onnxruntime-genai model builder. Its matrices are MatMulNBits: blocks of 32 weights, 4 bits
each, w = scale * (q - 8), two to a byte, the first in the low half (ONNX Runtime, docs/ContribOperators.md).
`GraphPiece` says which tensors of the GGUF file become which bytes of the graph's data file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opensled.core.errors import UnsupportedModel
from opensled.models.draft_assembly import tensor_bytes
from opensled.models.gguf_file import Head, TensorInfo, read_head

BLOCK = 32  # weights that share a scale
PLAN = "onnx.json"  # beside the graph that is shipped
GRAPH = "model.onnx"
DATA = "model.onnx.data"  # as the graph names it


@dataclass(frozen=True)
class GraphPiece:
    """Bytes of the data file: `form` is a key of `FORMS`; `tensors` of the GGUF file are joined, rows below rows."""

    offset: int
    bytes: int
    form: str
    tensors: tuple[str, ...] = ()


def assemble_onnx(shipped: Path, gguf: Path, folder: Path) -> None:
    """Write graph, data and configuration to `folder`, of the graph in `shipped` and the draft model `gguf`.

    Raises NotFound, or UnsupportedModel for a file that does not fit the graph.
    """
    plan, head = json.loads((shipped / PLAN).read_text()), read_head(gguf)
    pieces = [
        GraphPiece(each["offset"], each["bytes"], each["form"], tuple(each["tensors"]))
        for each in plan["pieces"]
    ]
    with (folder / DATA).open("wb") as sink:
        for piece in pieces:
            content = _content(piece, gguf, head)
            if len(content) != piece.bytes:
                raise UnsupportedModel(
                    f"{gguf} does not fit the graph of its ONNX form: {piece} has {len(content)} bytes"
                )
            sink.seek(piece.offset)
            sink.write(content)
        sink.flush()
        os.fsync(sink.fileno())
    (folder / GRAPH).write_bytes((shipped / GRAPH).read_bytes())
    (folder / "genai_config.json").write_text(json.dumps({"model": plan["model"]}, indent=1))


def _content(piece: GraphPiece, gguf: Path, head: Head) -> bytes:
    if piece.form in ROTATIONS:
        return ROTATIONS[piece.form](_angles(piece, head)).astype("<f4").tobytes()
    joined = b"".join(FORMS[piece.form](_matrix(name, gguf, head)) for name in piece.tensors)
    return joined


def _angles(piece: GraphPiece, head: Head) -> np.ndarray:
    """Of each position (rows) and pair of dimensions (columns), as in RoPE (arXiv 2104.09864)."""
    width = head.metadata["llama.rope.dimension_count"] // 2
    positions = np.arange(piece.bytes // 4 // width, dtype=np.float64)
    base = float(head.metadata["llama.rope.freq_base"])
    return np.outer(positions, base ** (-np.arange(width) / width))


def _matrix(name: str, gguf: Path, head: Head) -> np.ndarray:
    """A tensor as float32; queries and keys in the order of Hugging Face, which pairs dimension i with i + d/2."""
    values = dequantize(gguf, head.tensors[name])
    heads = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
    kind = name.split(".")[-2]
    if kind not in heads:
        return values
    count, (rows, columns) = head.metadata[heads[kind]], values.shape
    return values.reshape(count, rows // count // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def dequantize(path: Path, info: TensorInfo) -> np.ndarray:
    """A tensor of a GGUF file as float32: F32, F16, Q4_1 or Q8_0 (ggml-common.h)."""
    with path.open("rb") as file:
        file.seek(info.start)
        raw = np.frombuffer(file.read(tensor_bytes(info)), np.uint8)
    if info.kind in (0, 1):
        return raw.view(("<f4", "<f2")[info.kind]).astype(np.float32).reshape(info.shape)
    if info.kind == 3:
        blocks = raw.reshape(-1, 20)
        scale, least = (
            blocks[:, part].copy().view("<f2").astype(np.float32) for part in (slice(2), slice(2, 4))
        )
        quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
        return (quants * scale + least).reshape(info.shape)
    if info.kind == 8:
        blocks = raw.reshape(-1, 34)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return (blocks[:, 2:].copy().view(np.int8) * scale).reshape(info.shape)
    raise UnsupportedModel(
        f"{path} holds a tensor in a type (number {info.kind}) that is not read without llama.cpp's quantizer"
    )


def quantize(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quants [rows, columns / 32, 16] uint8, and scales [rows, columns / 32]. The largest of a block is exact."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(-1)[..., None], axis=-1)
    scales = largest / -8
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    quants = np.clip(np.rint(steps) + 8, 0, 15).astype(np.uint8)
    return quants[..., 0::2] | quants[..., 1::2] << 4, scales[..., 0]


FORMS: dict[str, Callable[[np.ndarray], bytes]] = {
    "float32": lambda values: values.astype("<f4").tobytes(),
    "quants": lambda values: quantize(values)[0].tobytes(),
    "scales": lambda values: quantize(values)[1].astype("<f4").tobytes(),
}
ROTATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"cosines": np.cos, "sines": np.sin}
