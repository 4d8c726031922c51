"""Random-weight GGUF files for engine torch: every architecture it reads, with metadata far from any default."""

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

from opensled.models import llama
from opensled.models.gguf_file import read_head
from tests.plain_llama import plain_llama
from tests.tiny_gguf import add_tokenizer, save

VOCABULARY = 2048  # the tiny family's
CONTEXT = 256

Shapes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Zoo:
    """A model to be written: its sizes, what its architecture has besides, and keys of its metadata."""

    architecture: str = "llama"
    width: int = 64
    ffn: int = 96
    heads: int = 4
    kv_heads: int = 2
    head: int = 24  # not width / heads
    layers: int = 2
    biases: tuple[str, ...] = ()  # tensors of a block that have one
    gains: tuple[str, ...] = ()  # norms of a block besides the usual two, over the model's width
    head_gains: bool = False  # norms of queries and keys
    fused: bool = False  # queries, keys and values in one tensor; gate and up as well
    tied: bool = True
    factors: bool = False  # of RoPE's frequencies
    eps: float = 1e-3
    # Behind the architecture's name, or whole: tokenizer.*
    keys: Mapping[str, int | float | str | bool] = field(default_factory=dict)


def write(path: Path, zoo: Zoo, left_out: str = "", added: str = "", pieces: Sequence[str] = ()) -> Path:
    """Writes the model as float32, the same weights each time; without tensor `left_out`, with tensor `added`.

    `pieces` is its vocabulary, if not the tiny family's.
    """
    writer = gguf.GGUFWriter(path, zoo.architecture)
    if pieces:
        _add_pieces(writer, pieces)
    else:
        add_tokenizer(writer, "qwen2")
    for key, value in (_sizes(zoo) | zoo.keys).items():
        _add(writer, key if key.startswith("tokenizer.") else f"{zoo.architecture}.{key}", value)
    chance = np.random.default_rng(0)
    for name, shape in _tensors(zoo, len(pieces) or VOCABULARY):
        if name != left_out:
            writer.add_tensor(name, _random(name, shape, chance))
    if added:
        writer.add_tensor(added, np.zeros(4, np.float32))
    save(writer)
    return path


def _random(name: str, shape: tuple[int, ...], chance: np.random.Generator) -> np.ndarray:
    values = chance.normal(size=shape) * (0.3 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1]))
    if "norm" in name or name == "rope_freqs.weight":
        values = 1 + np.abs(values)
    return values.astype(np.float32)


def _add_pieces(writer: gguf.GGUFWriter, pieces: Sequence[str]) -> None:
    """The first three are "a", "b" and "ab", all others control tokens."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(pieces)
    writer.add_token_types([1] * 3 + [3] * (len(pieces) - 3))
    writer.add_token_merges(["a b"])


def _add(writer: gguf.GGUFWriter, key: str, value: int | float | str | bool) -> None:
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool}
    add[type(value)](key, value)


def _sizes(zoo: Zoo) -> dict[str, int | float | str | bool]:
    return {
        "context_length": CONTEXT,
        "embedding_length": zoo.width,
        "block_count": zoo.layers,
        "feed_forward_length": zoo.ffn,
        "attention.head_count": zoo.heads,
        "attention.head_count_kv": zoo.kv_heads,
        "attention.key_length": zoo.head,
        "attention.value_length": zoo.head,
        "attention.layer_norm_rms_epsilon": zoo.eps,
        "rope.dimension_count": zoo.head,
    }


def _tensors(zoo: Zoo, vocabulary: int) -> Shapes:
    yield "token_embd.weight", (vocabulary, zoo.width)
    yield "output_norm.weight", (zoo.width,)
    if not zoo.tied:
        yield "output.weight", (vocabulary, zoo.width)
    if zoo.factors:
        yield "rope_freqs.weight", (zoo.head // 2,)
    for layer in range(zoo.layers):
        for name, shape in _block(zoo):
            yield f"blk.{layer}.{name}", shape


def _block(zoo: Zoo) -> Shapes:
    matrices = dict(_fused(zoo) if zoo.fused else _separate(zoo))
    matrices["attn_output"] = (zoo.width, zoo.heads * zoo.head)
    matrices["ffn_down"] = (zoo.width, zoo.ffn)
    for name, shape in matrices.items():
        yield f"{name}.weight", shape
    for name in zoo.biases:
        yield f"{name}.bias", matrices[name][:1]
    for name in ("attn_norm", "ffn_norm", *zoo.gains):
        yield f"{name}.weight", (zoo.width,)
    for name in ("attn_q_norm", "attn_k_norm") if zoo.head_gains else ():
        yield f"{name}.weight", (zoo.head,)


def _separate(zoo: Zoo) -> Shapes:
    yield "attn_q", (zoo.heads * zoo.head, zoo.width)
    yield "attn_k", (zoo.kv_heads * zoo.head, zoo.width)
    yield "attn_v", (zoo.kv_heads * zoo.head, zoo.width)
    yield "ffn_gate", (zoo.ffn, zoo.width)
    yield "ffn_up", (zoo.ffn, zoo.width)


def _fused(zoo: Zoo) -> Shapes:
    yield "attn_qkv", ((zoo.heads + 2 * zoo.kv_heads) * zoo.head, zoo.width)
    yield "ffn_up", (2 * zoo.ffn, zoo.width)


def quantize(source: Path, target: Path, kind: str, importance: bool = False) -> Path:
    """By llama.cpp's own quantizer, into file type `kind`, such as Q4_K_M; the smallest need an `importance`."""
    llama.listen()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}")
    params.allow_requantize, params.nthread = True, 1
    if importance:
        params.imatrix = _importance(source)
    status = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    assert status == 0, llama.cause()
    return target


def _importance(source: Path) -> ctypes.Array:
    """That every column of every matrix matters as much as any other."""
    matrices = {name: info for name, info in read_head(source).tensors.items() if len(info.shape) == 2}
    entries = (llama_cpp.llama_model_imatrix_data * (len(matrices) + 1))()  # the last one, empty, ends them
    for entry, (name, info) in zip(entries, matrices.items()):
        ones = (ctypes.c_float * info.shape[1])(*[1.0] * info.shape[1])
        entry.name, entry.data, entry.size = name.encode(), ones, len(ones)
    return entries


def llama_logits(path: Path, tokens: Sequence[int]) -> np.ndarray:
    """llama.cpp's logits after each token, float32 [tokens, vocabulary]; keys and values are float32 as well."""
    model = plain_llama(
        path, n_ctx=CONTEXT, n_threads=1, n_threads_batch=1, type_k=0, type_v=0, flash_attn=False
    )
    model.eval(tokens)
    logits = np.array(model.scores[: len(tokens)])
    model.close()
    return logits
