"""Drafting with a head of the target on ONNX Runtime: one pass drafts a whole block, from the target's hidden states.

The hidden states come from the server with its verdicts (opensled/features.py), each at its position. What the head
makes of a row is kept, so that each row is read once. Without the row before the newest token, or where that token is
not in the head's vocabulary, there is no draft, and the server goes on by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.head_parts import AGAIN, HeadParts, load_parts
from edge_client.drafters.threads import draft_threads
from opensled.drafting.head_drafts import Drawing, block_of, frame_trie, likeliest_of, place_trie
from opensled.drafting.head_form import SPAN, WINDOW, HeadAbout, read_about
from opensled.errors import (
    EngineError,
    UnsupportedModel,
    UsageError,
    VocabularyMismatch,
    first_line,
)
from opensled.features import FeatureRows
from opensled.messages import DraftBlock, DraftToken, ModelInfo, TreeNode
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
        self.feature_rows = int(self.about.by_steps)
        self._parts = load_parts(folder, draft_threads(threads, "onnx", model))
        if self.about.by_steps:
            from edge_client.drafters.step_head import try_steps

            try_steps(folder, self.about, self._parts)
        else:
            _try(folder, self.about, self._parts)

    def check_vocabulary(self, target: ModelInfo) -> None:
        if self.about.vocabulary != target.fingerprint:
            raise VocabularyMismatch(
                f"the head {self.name} was trained for {self.about.target!r}, whose vocabulary is not that of "
                f"{target.model_id!r}; export a head of this target"
            )

    def create(self) -> DeviceHead:
        if self.about.by_steps:
            from edge_client.drafters.step_head import StepHead

            return StepHead(self.about, self._parts)
        return DeviceHead(self.about, self._parts)


class DeviceHead(Drafter):
    """Of one sequence at a time."""

    def __init__(self, about: HeadAbout, parts: HeadParts) -> None:
        self._about, self._parts = about, parts
        self._places = {int(id): place for place, id in enumerate(parts.ids)}
        self._forget()

    def _forget(self) -> None:
        self._tokens: list[int] = []
        self._rows: dict[
            int, tuple[np.ndarray, ...]
        ] = {}  # by position what is kept of it: inputs, keys, values
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
        found = self._parts.reading({"hidden": states, "positions": positions})
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

    def _newest(self) -> int:
        """The newest token, as an id of the head."""
        return self._places.get(self._tokens[-1], NOT_DRAFTED) if self._tokens else NOT_DRAFTED

    def _drawing(self) -> Drawing:
        return Drawing(self._sampler.key, self._length, self._sampler.params.temperature)

    def _block(self, is_tree: bool) -> DraftBlock:
        if self._drafted is None or self._drafted[0] != is_tree:
            self._drafted = is_tree, self._draft(is_tree)
        return self._drafted[1]

    def _draft(self, is_tree: bool) -> DraftBlock:
        """What one pass drafts behind the text; nothing where the row it needs is not there."""
        length, newest = self._length, self._newest()
        row = length - 2
        if newest == NOT_DRAFTED or row not in self._rows:
            return DraftBlock(length)
        first = max(0, row // SPAN * SPAN + SPAN - WINDOW)
        seen = [self._rows[place] for place in sorted(self._rows) if first <= place <= row]
        keys, values = (np.stack([each[kind] for each in seen]) for kind in (1, 2))
        [outputs] = self._parts.drafting(_given(self._rows[row][0], newest, row, keys, values))
        if not np.isfinite(outputs).all():  # of hidden states that no target has
            return DraftBlock(length)
        drawing = self._drawing()
        with np.errstate(over="ignore", invalid="ignore"):  # of states that no target has
            if self._about.has_blank:
                trie = frame_trie(outputs, self._parts.ids, drawing)
            else:
                trie = self._place_trie(outputs, newest, is_tree, drawing)
            return block_of(trie, self._parts.ids, length, is_tree)

    def _place_trie(self, logits: np.ndarray, newest: int, is_tree: bool, drawing: Drawing) -> Any:
        parts, temperature = self._parts, drawing.temperature
        values, best = likeliest_of(parts.drawn(logits, drawing))
        bias = None
        if parts.after is not None:
            bias = lambda tokens, ids: parts.among(tokens, ids) / (temperature or 1.0)  # noqa: E731
        return place_trie(values, best, newest, is_tree, bias)


def _try(folder: Path, about: HeadAbout, parts: HeadParts) -> None:
    """Draft once from nothing: files that do not belong together shall fail here, and not in an answer.

    Raises UnsupportedModel.
    """
    empty = np.zeros((2, len(about.taps), about.size), np.float32)
    try:
        inputs, keys, values = parts.reading({"hidden": empty, "positions": np.arange(2)})
        [drafted] = parts.drafting(_given(inputs[1], 0, 1, keys, values))
        if drafted.shape != (about.length, len(parts.ids) + about.has_blank):
            raise ValueError(f"it drafts {drafted.shape}")
    except (EngineError, ValueError, IndexError) as error:
        raise UnsupportedModel(f"the files in {folder} do not fit: {first_line(error)}; {AGAIN}") from error


def _given(
    inputs: np.ndarray, newest: int, row: int, keys: np.ndarray, values: np.ndarray
) -> dict[str, np.ndarray]:
    """What `draft.onnx` reads: the row that decided the newest token, and all rows that it attends to."""
    newest_id, position = np.array([newest]), np.array([row])
    return {"inputs": inputs[None], "newest": newest_id, "position": position, "keys": keys, "values": values}
