"""A recurrent head on a device: one step for each token that is asked for, from the newest row of the target alone.

So a round takes one row over the link, and a prompt one as well. A token is drawn with the noise of its place between
two steps, as beside the target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_client.drafters.head import NOT_DRAFTED, DeviceHead
from edge_client.drafters.head_parts import AGAIN, HeadParts
from opensled.drafting.head_drafts import block_of, likeliest_of, spine_trie
from opensled.drafting.head_form import HeadAbout
from opensled.errors import EngineError, UnsupportedModel, first_line
from opensled.messages import DraftToken, TreeNode

KEPT = 4  # newest rows: rows may come late, or a little before their tokens
# From the place of a token in the draft and the id before it (of the head) to the logits there [V], with the noise.
Step = Callable[[int, int], NDArray[np.float32]]


class StepHead(DeviceHead):
    """Of one sequence at a time."""

    def _forget(self) -> None:
        super()._forget()
        self._chain: _Chain | None = None  # behind the present text

    def take(self, first: int, states: NDArray[np.float32]) -> None:
        newest = states[-KEPT:]
        begin = first + len(states) - len(newest)
        self._rows |= {begin + place: (newest[place : place + 1],) for place in range(len(newest))}
        self._rows = {place: self._rows[place] for place in sorted(self._rows)[-KEPT:]}
        self._chain = None

    def commit(self, tokens: Sequence[int]) -> None:
        super().commit(tokens)
        self._chain = None

    def propose(self) -> Iterator[DraftToken]:
        chain, place = self._begun(), 0
        # One that was begun behind an older text is another one.
        while chain is not None and chain is self._chain and chain.reach(place + 1):
            yield chain.token(place)
            place += 1

    def propose_tree(self) -> Iterator[TreeNode]:
        chain = self._begun()
        if chain is None:
            return
        while chain.reach(len(chain.ids) + 1):
            pass
        trie = spine_trie(np.array(chain.logits), np.array(chain.ids), True)
        block = block_of(trie, self._parts.ids, self._length, True)
        for token, parent in zip(block.tokens, block.parents):
            yield TreeNode(token, parent)

    def _begun(self) -> _Chain | None:
        """The draft behind the text, as far as there is one; None without the row that it needs."""
        newest, row = self._newest(), self._rows.get(self._length - 2)
        if newest == NOT_DRAFTED or row is None:
            return None
        if self._chain is None:
            self._chain = _Chain(self._steps(*row), newest, self._about.length, self._parts.ids)
        return self._chain

    def _steps(self, hidden: NDArray[np.float32]) -> Step:
        """From the hidden state [1, 1, d] of the row before the newest token."""
        state, cell = self._parts.reading({"hidden": hidden})
        drawing = self._drawing()

        def step(place: int, newest: int) -> NDArray[np.float32]:
            nonlocal state, cell
            given = {"state": state, "cell": cell, "newest": np.array([newest])}
            logits, state, cell = self._parts.drafting(given)
            return self._parts.drawn(logits, drawing, place)[0]

        return step


def try_steps(folder: Path, about: HeadAbout, parts: HeadParts) -> None:
    """Draft twice from nothing: files that do not belong together shall fail here, and not in an answer.

    Raises UnsupportedModel.
    """
    try:
        state, cell = parts.reading({"hidden": np.zeros((1, 1, about.size), np.float32)})
        for newest in (0, len(parts.ids) - 1):
            given = {"state": state, "cell": cell, "newest": np.array([newest])}
            logits, state, cell = parts.drafting(given)
            if logits.shape != (1, len(parts.ids)):
                raise ValueError(f"it drafts {logits.shape}")
    except (EngineError, ValueError) as error:
        raise UnsupportedModel(f"the files in {folder} do not fit: {first_line(error)}; {AGAIN}") from error


class _Chain:
    """A draft as far as it was asked for: of each step the likeliest ids of the head and their logits, best first."""

    def __init__(self, step: Step, newest: int, most: int, known: NDArray[np.int64]) -> None:
        """`known`: the target's ids of those of the head."""
        self._step, self._newest, self._most, self._known = step, newest, most, known
        self.logits: list[NDArray[np.float32]] = []
        self.ids: list[NDArray[np.int64]] = []

    def reach(self, count: int) -> bool:
        """Whether there are so many tokens; computes the ones that are missing."""
        while len(self.ids) < min(count, self._most):
            logits = self._step(len(self.ids), self._newest)
            if not np.isfinite(logits).all():  # of hidden states that no target has
                self._most = len(self.ids)
                break
            values, ids = likeliest_of(logits)
            self.logits.append(values)
            self.ids.append(ids)
            self._newest = int(ids[0])
        return count <= self._most

    def token(self, place: int) -> DraftToken:
        values = self.logits[place]
        chance = float(np.exp(values[0] - np.logaddexp.reduce(values)))
        return DraftToken(int(self._known[self.ids[place][0]]), chance)
