"""The GGUF form of a model that OpenSLED ships as safetensors: made at first use, for no number is shipped twice.

Beside the weights lie `gguf.head`, all that comes before the numbers (keys, tokenizer, list of tensors), and
`gguf.json`: name, size and sha256 of the whole, and where the numbers are. What differs from these is never used.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from opensled.draft_assembly import tensor_bytes
from opensled.errors import NotFound, UnsupportedModel, first_line
from opensled.files import write_whole
from opensled.gguf_file import Head, TensorInfo, read_head

RECIPE, HEAD = "gguf.json", "gguf.head"
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
_FLOATS = {"F16": "<f2", "F32": "<f4"}
LARGEST = 127  # of the whole numbers of Q8_0


class WeightsFile(NamedTuple):
    """A safetensors file."""

    file: str  # relative to the model's folder
    prefix: str = ""  # of the names of its tensors


class Recipe(NamedTuple):
    """What `gguf.json` in a folder says."""

    folder: Path
    file: str
    bytes: int
    sha256: str  # hex
    sources: tuple[WeightsFile, ...]  # the first that has a tensor counts

    @property
    def path(self) -> Path:
        """Of the GGUF file, whether it is there or not."""
        return self.folder / self.file


def write_recipe(gguf: Path, folder: Path, sources: Sequence[WeightsFile]) -> None:
    """Write to `folder` what `make` makes the file `gguf` of; nothing is checked here."""
    content = gguf.read_bytes()
    first = min(tensor.start for tensor in read_head(gguf).tensors.values())
    (folder / HEAD).write_bytes(content[:first])
    about = {
        "file": gguf.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "sources": [source._asdict() for source in sources],
    }
    (folder / RECIPE).write_text(json.dumps(about, indent=2) + "\n")


def recipe_in(folder: Path) -> Recipe | None:
    """None if the folder has none. Raises UnsupportedModel for one that is damaged."""
    path = folder / RECIPE
    if not path.is_file():
        return None
    try:
        about = json.loads(path.read_text("utf-8"))
        sources = tuple(WeightsFile(**source) for source in about.pop("sources"))
        return Recipe(folder, sources=sources, **about)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise UnsupportedModel(f"{path} is damaged: {first_line(error)}; {_again(folder)}") from error


def made(recipe: Recipe) -> Path:
    """The whole GGUF file, made now if it is not there, or is that of another version.

    Several processes may do so at once: each writes the same bytes beside the file and renames them.
    Raises NotFound and UnsupportedModel.
    """
    if not _is_there(recipe):
        content = _content(recipe)
        try:
            write_whole(recipe.path, content)
        except OSError as error:
            raise NotFound(
                f"{recipe.path} is made at first use and cannot be written: {error.strerror}; "
                f"run once as a user who may write there: opensled models path {recipe.path}",
                "model",
            ) from error
    return recipe.path


def make_all(models: Path) -> list[Path]:
    """Make the files of all folders in `models` that have a recipe. Raises as `made` does."""
    recipes = [recipe_in(path.parent) for path in sorted(models.glob(f"*/{RECIPE}"))]
    return [made(recipe) for recipe in recipes if recipe]


def _is_there(recipe: Recipe) -> bool:
    """A file that is younger than its recipe was made of it; of another the bytes are looked at."""
    try:
        found = recipe.path.stat()
        if found.st_size != recipe.bytes:
            return False
        if found.st_mtime_ns > (recipe.folder / RECIPE).stat().st_mtime_ns:
            return True
        return hashlib.sha256(recipe.path.read_bytes()).hexdigest() == recipe.sha256
    except OSError:
        return False


def _content(recipe: Recipe) -> bytes:
    try:
        content = _joined(recipe)
    except OSError as error:
        raise NotFound(
            f"{recipe.path} cannot be made: {error.filename}: {error.strerror}; {_again(recipe.folder)}",
            "model",
        ) from error
    except (UnsupportedModel, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise UnsupportedModel(
            f"{recipe.path} cannot be made: {first_line(error)}; {_again(recipe.folder)}"
        ) from error
    if hashlib.sha256(content).hexdigest() != recipe.sha256:
        files = ", ".join([HEAD, *(source.file for source in recipe.sources)])
        raise UnsupportedModel(
            f"{recipe.path} cannot be made: what comes out is another file than {RECIPE} says, so one of {files} "
            f"is damaged or of another version; {_again(recipe.folder)}"
        )
    return content


def _again(folder: Path) -> str:
    return f"get {folder} again (git checkout -- {folder}), or install OpenSLED again"


def _joined(recipe: Recipe) -> bytes:
    path = recipe.folder / HEAD
    content, head = bytearray(path.read_bytes()), read_head(path)
    weights = [_Weights(recipe.folder / source.file, source.prefix) for source in recipe.sources]
    for name, info in head.tensors.items():
        content += bytes(max(0, info.start - len(content)))  # up to a multiple of the alignment
        content += _stored(name, info, _ordered(name, _found(name, weights), head))
    return bytes(content)


def _found(name: str, weights: list[_Weights]) -> np.ndarray:
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


def _ordered(name: str, values: np.ndarray, head: Head) -> np.ndarray:
    key = _HEADS.get(name.split(".")[-2])
    return values if key is None else interleaved(values, head.metadata[key])


def interleaved(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys: Hugging Face pairs rotary dimension i with i + d/2, llama.cpp's Llama 2i with 2i + 1."""
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _stored(name: str, info: TensorInfo, values: np.ndarray) -> bytes:
    """Raises ValueError."""
    if values.shape != info.shape or info.kind not in _KINDS:
        raise ValueError(f"{name} has the shape {values.shape}, not {info.shape}, or type {info.kind}")
    content: bytes = _KINDS[info.kind](values)
    assert len(content) == tensor_bytes(info)
    return content


def _eights(values: np.ndarray) -> bytes:
    """Q8_0, as gguf-py rounds it: blocks of 32 numbers, a float16 scale before them, halves away from zero."""
    blocks = values.astype(np.float32).reshape(-1, 32)
    scales = np.abs(blocks).max(-1, keepdims=True) / np.float32(LARGEST)
    with np.errstate(divide="ignore"):
        inverse = np.where(scales == 0, np.float32(0), 1 / scales)
    steps = blocks * inverse
    size = np.abs(steps)
    whole = np.floor(size)
    rounded = np.sign(steps) * (whole + np.floor(2 * (size - whole)))
    scale_bytes, step_bytes = scales.astype("<f2").view(np.uint8), rounded.astype(np.int8).view(np.uint8)
    return np.concatenate([scale_bytes, step_bytes], axis=1).tobytes()


# ggml's number of a type -> the bytes of a tensor in it: F32, F16, Q8_0.
_KINDS = {
    0: lambda values: values.astype("<f4").tobytes(),
    1: lambda values: values.astype("<f2").tobytes(),
    8: _eights,
}


class _Weights:
    """The tensors of a safetensors file: 8 bytes for the length of a JSON object that lists them, it, their numbers.

    Raises OSError, ValueError, KeyError and struct.error.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self._content, self._prefix = path.read_bytes(), prefix
        (length,) = struct.unpack("<Q", self._content[:8])
        self._first = 8 + length
        self._listed: dict[str, Any] = json.loads(self._content[8 : self._first])

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._listed

    def __getitem__(self, name: str) -> np.ndarray:
        found = self._listed[self._prefix + name]
        begin, end = (self._first + place for place in found["data_offsets"])
        return np.frombuffer(self._content[begin:end], _FLOATS[found["dtype"]]).reshape(found["shape"])
