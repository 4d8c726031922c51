"""Drafting with a head of the target on ONNX Runtime: one pass drafts a whole block, from the target's hidden states.

The hidden states come from the server with its verdicts (opensled/features.py), each at its position. What the head
makes of a row is kept, so that each row is read once. Without the row before the newest token, or where that token is
not in the head's vocabulary, there is no draft, and the server goes on by itself.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.threads import draft_threads
from opensled.drafting.beam import CANDIDATES
from opensled.drafting.head_drafts import Drawing, block_of, frame_trie, place_trie
from opensled.drafting.head_form import DRAFT, PARTS, READ, SPAN, WINDOW, HeadAbout, read_about
from opensled.errors import (
    EngineError,
    NotFound,
    UnsupportedModel,
    UsageError,
    VocabularyMismatch,
    first_line,
)
from opensled.features import FeatureRows
from opensled.messages import DraftBlock, DraftToken, ModelInfo, TreeNode
from opensled.noise import gumbel
from opensled.sampling import Sampler

log = logging.getLogger(__name__)

NOT_DRAFTED = -1  # in place of an id that the head cannot draft


class HeadFactory(DrafterFactory):
    """`--drafter head --draft-model FOLDER`, a folder that `opensled export-head` wrote."""

    def __init__(self, model: str = "", threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:
        """Raises UsageError, NotFound, UnsupportedModel."""
        if not model:
            raise UsageError("--drafter head needs --draft-model FOLDER, which opensled export-head writes")
        folder = Path(model)
        self.about = read_about(folder)
        self.name = f"head {self.about.kind} {folder.name}"
        self.features = self.about.taps
        self._parts = _load(folder, draft_threads(threads, "onnx", model))
        _try(folder, self.about, self._parts)

    def check_vocabulary(self, target: ModelInfo) -> None:
        if self.about.vocabulary != target.fingerprint:
            raise VocabularyMismatch(
                f"the head {self.name} was trained for {self.about.target!r}, whose vocabulary is not that of "
                f"{target.model_id!r}; export a head of this target"
            )

    def create(self) -> DeviceHead:
        return DeviceHead(self.about, self._parts)


@dataclass(frozen=True)
class _HeadParts:
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


class DeviceHead(Drafter):
    """Of one sequence at a time."""

    def __init__(self, about: HeadAbout, parts: _HeadParts) -> None:
        self._about, self._parts = about, parts
        self._places = {int(id): place for place, id in enumerate(parts.ids)}
        self._forget()

    def _forget(self) -> None:
        self._tokens: list[int] = []
        self._rows: dict[int, tuple[np.ndarray, ...]] = {}  # inputs, keys, values by position, ascending
        self._drafted: tuple[bool, DraftBlock] | None = None  # behind the present text: whether it is a tree
        self._is_told = False  # that features do not fit

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._forget()
        self._tokens, self._sampler = list(prompt), sampler

    def features(self, rows: FeatureRows) -> None:
        if rows.layers != self._about.taps or rows.size != self._about.size:
            if not self._is_told:
                log.warning("the server's hidden states are not those of the head's target; it cannot draft")
            self._is_told = True
            return
        self.take(rows.first, rows.states())

    def take(self, first: int, states: NDArray[np.float32]) -> None:
        """Hidden states [n, taps, size] from position `first` on."""
        positions = np.arange(first, first + len(states))
        found = _run(self._parts.read, {"hidden": states, "positions": positions})
        self._rows |= zip(positions.tolist(), zip(*found))
        if len(self._rows) > 2 * WINDOW:
            self._rows = {place: self._rows[place] for place in sorted(self._rows)[-WINDOW:]}
        self._drafted = None

    def commit(self, tokens: Sequence[int]) -> None:
        self._tokens.extend(tokens)
        self._drafted = None

    def propose(self) -> Iterator[DraftToken]:
        yield from self._block(is_tree=False).tokens

    def propose_tree(self) -> Iterator[TreeNode]:
        block = self._block(is_tree=True)
        for token, parent in zip(block.tokens, block.parents):
            yield TreeNode(token, parent)

    def close(self) -> None:
        self._forget()

    @property
    def _length(self) -> int:
        """Of the whole text, with what the drafter is not told of."""
        return len(self._tokens) + self._sampler.skipped

    def _block(self, is_tree: bool) -> DraftBlock:
        if self._drafted is None or self._drafted[0] != is_tree:
            self._drafted = is_tree, self._draft(is_tree)
        return self._drafted[1]

    def _draft(self, is_tree: bool) -> DraftBlock:
        """What one pass drafts behind the text; nothing where the row it needs is not there."""
        length = self._length
        newest = self._places.get(self._tokens[-1], NOT_DRAFTED) if self._tokens else NOT_DRAFTED
        row = length - 2
        if newest == NOT_DRAFTED or row not in self._rows:
            return DraftBlock(length)
        first = max(0, row // SPAN * SPAN + SPAN - WINDOW)
        seen = [self._rows[place] for place in sorted(self._rows) if first <= place <= row]
        keys, values = (np.stack([each[kind] for each in seen]) for kind in (1, 2))
        [outputs] = _run(self._parts.draft, _given(self._rows[row][0], newest, row, keys, values))
        if not np.isfinite(outputs).all():  # of hidden states that no target has
            return DraftBlock(length)
        drawing = Drawing(self._sampler.key, length, self._sampler.params.temperature)
        with np.errstate(over="ignore", invalid="ignore"):  # of states that no target has
            if self._about.has_blank:
                trie = frame_trie(outputs, self._parts.ids, drawing)
            else:
                trie = self._place_trie(outputs, newest, is_tree, drawing)
            return block_of(trie, self._parts.ids, length, is_tree)

    def _place_trie(self, logits: np.ndarray, newest: int, is_tree: bool, drawing: Drawing) -> Any:
        parts, temperature = self._parts, drawing.temperature
        if temperature > 0:
            places = range(drawing.length, drawing.length + len(logits))
            noise = [gumbel(drawing.key, place, parts.ids) for place in places]
            # What no float32 holds, of a temperature next to nothing, is drawn as at none.
            logits = np.nan_to_num(logits / np.float32(temperature) + np.array(noise, np.float32))
        best = np.argsort(-logits, axis=1, kind="stable")[:, :CANDIDATES]
        values = np.take_along_axis(logits, best, axis=1)
        bias = None
        if parts.after is not None:
            bias = lambda tokens, ids: parts.among(tokens, ids) / (temperature or 1.0)  # noqa: E731
        return place_trie(values, best, newest, is_tree, bias)


def _run(session: ort.InferenceSession, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        return session.run(None, given)
    except Exception as error:  # onnxruntime raises a class per status, with no common root
        raise EngineError(f"ONNX Runtime failed to compute a draft: {first_line(error)}") from error


def _load(folder: Path, threads: int) -> _HeadParts:
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
        raise UnsupportedModel(f"{folder / PARTS} cannot be read: {first_line(error)}; {_AGAIN}") from error
    return _HeadParts(read, draft, ids, after, towards)


_AGAIN = "export the head again with opensled export-head"
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


def _try(folder: Path, about: HeadAbout, parts: _HeadParts) -> None:
    """Draft once from nothing: files that do not belong together shall fail here, and not in an answer.

    Raises UnsupportedModel.
    """
    empty = np.zeros((2, len(about.taps), about.size), np.float32)
    try:
        inputs, keys, values = _run(parts.read, {"hidden": empty, "positions": np.arange(2)})
        [drafted] = _run(parts.draft, _given(inputs[1], 0, 1, keys, values))
        if drafted.shape != (about.length, len(parts.ids) + about.has_blank):
            raise ValueError(f"it drafts {drafted.shape}")
    except (EngineError, ValueError, IndexError) as error:
        raise UnsupportedModel(f"the files in {folder} do not fit: {first_line(error)}; {_AGAIN}") from error


def _given(
    inputs: np.ndarray, newest: int, row: int, keys: np.ndarray, values: np.ndarray
) -> dict[str, np.ndarray]:
    """What `draft.onnx` reads: the row that decided the newest token, and all rows that it attends to."""
    newest_id, position = np.array([newest]), np.array([row])
    return {"inputs": inputs[None], "newest": newest_id, "position": position, "keys": keys, "values": values}


def _gone(path: Path) -> NotFound:
    return NotFound(f"{path} is missing; {_AGAIN}", "model")


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
        raise UnsupportedModel(f"ONNX Runtime cannot load {path}: {first_line(error)}; {_AGAIN}") from error
