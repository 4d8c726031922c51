"""Hidden states of a sequence for the draft head of its device: which are wanted, and which were sent.

Of each position a row is taken once, when the target computes it and the token there is committed. What the prefix
cache gave is not computed, so these positions are missing: no step gets longer for a head. The newest rows are kept, as
many as a verdict may carry, for a device that lost its stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opensled.features import FeatureRows, most_rows
from verify_server.acceptance.base import AcceptanceResult
from verify_server.engine.base import Scores, Segment

# Verdicts without a reader at which rows wait for later ones. Chosen: a slow link then carries tokens first.
MOST_UNREAD = 4


class _Row(NamedTuple):
    position: int
    scales: tuple[float, ...]
    data: bytes


@dataclass(eq=False)
class FeatureWish:
    """Of one step: the engine's thread fills it, the session takes what is in it."""

    layers: tuple[int, ...]
    first: int  # position from which rows are wanted,
    most: int  # and of those that the step computes the newest so many
    rows: Sequence[_Row] = ()


class FeatureLog:
    """Of one session; lives on the event loop."""

    def __init__(self, layers: tuple[int, ...], size: int, known: int, asked: int = 0) -> None:
        """`size`: elements of a hidden state; `known`: tokens of the text now, of which the newest rows are wanted;
        `asked`: rows of a verdict at most, 0 = as many as it may carry."""
        self.layers, self.asked, self._size = layers, asked, size
        self._most = most_rows(len(layers), size, asked)
        self._rows: deque[_Row] = deque(maxlen=self._most)
        self._next = max(0, known - self._most)  # position of the next row to take
        self._told = 0  # positions before this one were sent

    def wish(self, segment: Segment) -> FeatureWish:
        """Before a step over `segment`."""
        return FeatureWish(self.layers, max(self._next, segment.start), self._most)

    def take(self, wish: FeatureWish) -> None:
        """What a step has computed; rows that are here already stay."""
        if wish.layers != self.layers:  # asked for on an earlier stream
            return
        for row in wish.rows:
            if row.position >= self._next:
                self._rows.append(row)
                self._next = row.position + 1

    def tell(self) -> tuple[FeatureRows, ...]:
        """What was not sent yet, as runs of consecutive positions."""
        runs: list[list[_Row]] = []
        for row in self._rows:
            if row.position < self._told:
                continue
            if runs and runs[-1][-1].position + 1 == row.position:
                runs[-1].append(row)
            else:
                runs.append([row])
        self._told = self._next
        return tuple([self._run(rows) for rows in runs])

    def reopened(self, known: int) -> None:
        """A device that has `known` tokens listens on a new stream: rows that may have been lost go out once more."""
        self._told = min(self._told, max(0, known - 1))

    def _run(self, rows: Sequence[_Row]) -> FeatureRows:
        scales = tuple([scale for row in rows for scale in row.scales])
        return FeatureRows(
            rows[0].position, self._size, scales, b"".join([row.data for row in rows]), self.layers
        )


def wished(segment: Segment, log: FeatureLog | None) -> tuple[Segment, FeatureWish | None]:
    """A segment, and what of its hidden states is wanted; None = nothing is."""
    if log is None:
        return segment, None
    return segment._replace(features=log.layers), log.wish(segment)


def told_by(log: FeatureLog | None, unread: int) -> tuple[FeatureRows, ...]:
    """What goes with a verdict to a reader who has `unread` others before it."""
    return () if log is None or unread >= MOST_UNREAD else log.tell()


def fulfil(
    wishes: Sequence[tuple[FeatureWish, Segment, int, AcceptanceResult | None]], scores: Scores
) -> None:
    """In the engine's thread, after the rules have decided: copy the wanted rows of committed positions.

    Each wish comes with its segment, the number of the segment's first row in the step, and what was decided. One copy
    serves all wishes for the same hidden states.
    """
    by_layers: dict[tuple[int, ...], list[tuple[FeatureWish, list[tuple[int, int]]]]] = {}
    for wish, segment, first_row, result in wishes:
        places = [
            (position, first_row + index)
            for position, index in _committed(segment, result)
            if position >= wish.first
        ][-wish.most :]
        if places:
            by_layers.setdefault(wish.layers, []).append((wish, places))
    for layers, asked in by_layers.items():
        rows = [row for _, places in asked for _, row in places]
        data, scales = scores.features(layers, rows)
        told = iter(zip(scales.tolist(), data))
        for wish, places in asked:
            wish.rows = [
                _Row(position, tuple(own), elements.tobytes())
                for (position, _), (own, elements) in zip(places, told)
            ]


def _committed(segment: Segment, result: AcceptanceResult | None) -> list[tuple[int, int]]:
    """(position in the text, token of the segment) of what is computed and stands; None: a chunk of a prompt."""
    drafted = segment.rows - 1 if result is not None else 0
    known = len(segment.tokens) - drafted
    accepted: Sequence[int] = ()
    if result is not None:
        accepted = result.path if segment.parents else range(result.num_accepted)
    indices = [*range(known), *[known + index for index in accepted]]
    return [(segment.start + place, index) for place, index in enumerate(indices)]
