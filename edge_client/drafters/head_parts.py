"""The files of a device's head: two graphs of ONNX Runtime, and the arrays that they draft with."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from opensled.drafting.head_drafts import Drawing
from opensled.drafting.head_form import DRAFT, PARTS, READ
from opensled.errors import EngineError, NotFound, UnsupportedModel, first_line
from opensled.noise import gumbel


@dataclass(frozen=True)
class HeadParts:
    """What all drafters of a device share."""

    read: ort.InferenceSession
    draft: ort.InferenceSession
    ids: NDArray[np.int64]  # [V]: the target's id of each id of the head
    after: (
        NDArray[np.float32] | None
    )  # [V, rank]: the bias between neighbours (verify_server/heads/markov.py)
    towards: NDArray[np.float32] | None

    def among(self, tokens: Sequence[int], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """[W, C]: what the tokens before [W] add to the logits of ids [C]."""
        assert self.after is not None and self.towards is not None
        rows = np.array(tokens)
        found = self.after[np.maximum(rows, 0)] @ self.towards[ids].T
        found[rows < 0] = 0
        return found

    def reading(self, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        return _run(self.read, given)

    def drafting(self, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        return _run(self.draft, given)

    def drawn(self, logits: NDArray[np.float32], drawing: Drawing, first: int = 0) -> NDArray[np.float32]:
        """What is drawn from by taking the largest: of logits [places, V], the first of which is place `first`."""
        if drawing.temperature <= 0:
            return logits
        begin = drawing.length + first
        noise = [gumbel(drawing.key, place, self.ids) for place in range(begin, begin + len(logits))]
        with np.errstate(over="ignore"):
            # What no float32 holds, of a temperature next to nothing, is drawn as at none.
            return np.nan_to_num(logits / np.float32(drawing.temperature) + np.array(noise, np.float32))


def _run(session: ort.InferenceSession, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        return session.run(None, given)
    except Exception as error:  # onnxruntime raises a class per status, with no common root
        raise EngineError(f"ONNX Runtime failed to compute a draft: {first_line(error)}") from error


def load_parts(folder: Path, threads: int) -> HeadParts:
    """Raises NotFound and UnsupportedModel."""
    read, draft = (_session(folder / name, threads) for name in (READ, DRAFT))
    try:
        with np.load(folder / PARTS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        ids, after, towards = arrays["ids"], arrays.get("after"), arrays.get("towards")
        if ids.ndim != 1 or ids.dtype != np.int64 or (ids < 0).any() or len(ids) == 0:
            raise ValueError("ids that are none")
        _check_bias(ids, after, towards)
    except FileNotFoundError as error:
        raise _gone(folder / PARTS) from error
    except (OSError, ValueError, KeyError, *_DAMAGED) as error:
        raise UnsupportedModel(f"{folder / PARTS} cannot be read: {first_line(error)}; {AGAIN}") from error
    return HeadParts(read, draft, ids, after, towards)


AGAIN = "export the head again with opensled export-head"
# What numpy and its decompression raise of bytes that are no arrays, or claim more than memory has
_DAMAGED = (
    BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
)


def _check_bias(ids: np.ndarray, after: np.ndarray | None, towards: np.ndarray | None) -> None:
    """Raises ValueError."""
    if after is None and towards is None:
        return
    if after is None or towards is None or after.ndim != 2 or after.shape != towards.shape:
        raise ValueError("a bias of two sizes")
    if len(after) != len(ids) or {after.dtype, towards.dtype} != {np.dtype(np.float32)}:
        raise ValueError("a bias that does not fit the ids")


def _gone(path: Path) -> NotFound:
    return NotFound(f"{path} is missing; {AGAIN}", "model")


def _session(path: Path, threads: int) -> ort.InferenceSession:
    if not path.is_file():
        raise _gone(path)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # fatal only: errors come as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting costs no battery
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a class per status, with no common root
        raise UnsupportedModel(f"ONNX Runtime cannot load {path}: {first_line(error)}; {AGAIN}") from error
