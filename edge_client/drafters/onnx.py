"""Drafting with ONNX Runtime and a graph of the onnxruntime-genai model builder.

Its GroupQueryAttention operator writes new keys and values into the buffer that holds the old ones and takes
the valid length from the attention mask: one preallocated buffer per layer is bound as past and as present,
nothing is copied, and rollback is a shorter mask.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edge_client.drafters.base import DrafterOptions, ModelDrafter
from edge_client.drafters.model_factory import ModelFactory
from edge_client.drafters.threads import draft_threads
from edge_client.drafters.window import Window
from opensled.core.errors import EngineError, NotFound, UnsupportedModel
from opensled.models.gguf_file import read_metadata
from opensled.models.store import model_file
from opensled.text.tokenizer import TargetTokenizer, pieces_of, tokenizer_of

CONTEXT_CAP = 8192  # positions per sequence; memory is taken as they fill up
CHUNK = 32  # tokens per call: every call returns a logits row for each of its tokens


class OnnxFactory(ModelFactory):
    """One session (weights, thread pool) that all drafters share; each drafter adds its own KV buffers."""

    def __init__(self, model: str, threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:
        path = model_file(model, "*.onnx")
        self.name = f"onnx {path.name}"
        self._tokenizer_path = path.with_name("tokenizer.json")
        _require_shared_buffer(path)
        self._session = _load(path, draft_threads(threads))
        self._shape = _read_shape(self._session, path.parent)
        self._window = Window(options.window)

    def pieces(self) -> list[str]:
        """Of tokenizer.json, or of the GGUF form of the model beside its ONNX form."""
        if self._tokenizer_path.exists():
            return pieces_of(tokenizer_of(self._tokenizer_path.read_bytes()))
        ggufs = sorted(self._tokenizer_path.parent.glob("*.gguf"))
        if not ggufs:
            raise self._missing()
        return list(read_metadata(ggufs[0]).get("tokenizer.ggml.tokens", []))

    def tokenizer(self) -> OnnxTokenizer:
        if not self._tokenizer_path.exists():
            raise self._missing()
        return OnnxTokenizer(self._tokenizer_path)

    def _missing(self) -> NotFound:
        return NotFound(f"{self._tokenizer_path} is missing; copy the draft model's own there", "model")

    def create_model(self) -> OnnxDrafter:
        drafter = OnnxDrafter(self._session, self._shape)
        drafter.prepare(self._window)
        return drafter


class OnnxTokenizer(TargetTokenizer):
    """See `DraftTokenizer`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.read_bytes())
        self.size, self.frame = len(self.pieces), self.encode("")
        self.ends = frozenset(_Config(path.parent).ends())


@dataclass(frozen=True)
class CacheShape:
    """Sizes and types of the buffers of one sequence."""

    caches: tuple[str, ...]  # past_key_values.{layer}.{key|value}
    cache_dtype: type[np.floating]
    heads: int  # KV heads
    head_size: int
    context_length: int
    vocab_size: int
    logits_dtype: type[np.floating]
    wants_positions: bool


class OnnxDrafter(ModelDrafter):
    """The buffers of one sequence, bound once; each call rebinds only ids, mask and logits."""

    def __init__(self, session: ort.InferenceSession, shape: CacheShape) -> None:
        super().__init__(shape.context_length)
        self._session, self._shape = session, shape
        self._binding: Any = session.io_binding()
        self._mask = np.ones((1, shape.context_length), np.int64)
        self._positions = np.arange(shape.context_length, dtype=np.int64)[None]
        self._logits = np.empty((1, CHUNK, shape.vocab_size), shape.logits_dtype)
        self._caches = [self._bind_cache(name) for name in shape.caches]

    def _bind_cache(self, past: str) -> ort.OrtValue:
        shape = self._shape
        zeros = np.zeros((1, shape.heads, shape.context_length, shape.head_size), shape.cache_dtype)
        cache = ort.OrtValue.ortvalue_from_numpy(zeros)
        self._binding.bind_ortvalue_input(past, cache)
        self._binding.bind_ortvalue_output(past.replace("past_key_values", "present"), cache)
        return cache

    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        if self._binding is None:
            raise EngineError("this drafter is closed; create another one")
        ids = np.array(tokens, np.int64)[None]
        for offset in range(0, len(tokens), CHUNK):
            row = self._run(ids[:, offset : offset + CHUNK], start + offset)
        return row

    def _run(self, ids: np.ndarray, start: int) -> np.ndarray:
        count = ids.shape[1]
        self._feed("input_ids", ids)
        self._feed("attention_mask", self._mask[:, : start + count])
        if self._shape.wants_positions:
            self._feed("position_ids", self._positions[:, start : start + count])
        rows = self._logits[:, :count]
        self._binding.bind_output("logits", "cpu", 0, rows.dtype, rows.shape, rows.ctypes.data)
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime raises a class per status, with no common root
            raise EngineError(f"ONNX Runtime failed to compute {count} draft tokens: {error}") from error
        return rows[0, -1]

    def _feed(self, name: str, array: np.ndarray) -> None:
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def truncate(self, length: int) -> int:
        return length  # the next mask is shorter; what lies beyond is overwritten

    def close(self) -> None:
        super().close()
        self._binding, self._caches = None, []


def _load(path: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # fatal only: errors come as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting costs no battery
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class per status, with no common root
        raise UnsupportedModel(f"ONNX Runtime cannot load {path}: {error}") from error


def _require_shared_buffer(path: Path) -> None:
    """Refuse graphs that keep their KV by concatenation: bound to one buffer they would compute nonsense."""
    with path.open("rb") as file:
        if path.stat().st_size and mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).find(_OPERATOR) >= 0:
            return
    raise UnsupportedModel(
        f"{path} has no GroupQueryAttention operator, so its KV cannot be rolled back in place; "
        "export the model with: python -m onnxruntime_genai.models.builder -i MODEL -o FOLDER -p int4 -e cpu"
    )


_OPERATOR = b"GroupQueryAttention"


def _read_shape(session: ort.InferenceSession, folder: Path) -> CacheShape:
    inputs = {node.name: node for node in session.get_inputs()}
    logits = next((node for node in session.get_outputs() if node.name == "logits"), None)
    caches = tuple(name for name in inputs if name.startswith("past_key_values."))
    if logits is None or not caches or not {"input_ids", "attention_mask"} <= inputs.keys():
        raise UnsupportedModel(
            f"the graph in {folder} is not a text decoder of the onnxruntime-genai builder"
        )
    unknown = inputs.keys() - {"input_ids", "attention_mask", "position_ids", *caches}
    cache = inputs[caches[0]]
    if unknown:
        raise UnsupportedModel(
            f"the graph in {folder} needs inputs that a drafter does not have: {sorted(unknown)}"
        )
    config = _Config(folder)
    return CacheShape(
        caches=caches,
        cache_dtype=_dtype(cache.type),
        heads=_number(cache.shape[1]) or config.number("num_key_value_heads"),
        head_size=_number(cache.shape[3]) or config.head_size(),
        context_length=min(CONTEXT_CAP, config.number("context_length", "max_position_embeddings")),
        vocab_size=_number(logits.shape[2]) or config.number("vocab_size"),
        logits_dtype=_dtype(logits.type),
        wants_positions="position_ids" in inputs,
    )


def _dtype(onnx_type: str) -> type[np.floating]:
    if onnx_type == "tensor(float)":
        return np.float32
    if onnx_type == "tensor(float16)":
        return np.float16
    raise UnsupportedModel(f"the graph uses {onnx_type}; export it in fp32, fp16, int8 or int4")


def _number(dimension: object) -> int:
    """A dimension of the graph; 0 if it is symbolic."""
    return dimension if isinstance(dimension, int) else 0


class _Config:
    """The numbers of genai_config.json and config.json, as far as these files exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        genai = _read_json(folder / "genai_config.json").get("model", {})
        self.values = {**_read_json(folder / "config.json"), **genai, **genai.get("decoder", {})}

    def head_size(self) -> int:
        if "head_size" in self.values or self.values.get("head_dim"):
            return self.number("head_size", "head_dim")
        return self.number("hidden_size") // self.number("num_attention_heads")

    def ends(self) -> list[int]:
        """The ids that end an answer, as far as the files name them."""
        found = self.values.get("eos_token_id", [])
        return [id for id in (found if isinstance(found, list) else [found]) if isinstance(id, int)]

    def number(self, *names: str) -> int:
        for name in names:
            if isinstance(self.values.get(name), int):
                return self.values[name]
        raise UnsupportedModel(f"{self.folder} has no {names[-1]}; copy the model's config.json there")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}") from error
