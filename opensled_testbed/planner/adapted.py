"""Drafts as an adapted draft model would propose them: recorded texts, and proposals that are right at a given rate.

The recorded pair is a tiny one. Drafts that were trained for their target are accepted more often. The proposals
here are made up to simulate what that is worth, and are labelled so.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from opensled_testbed.traces import ItemTrace, Proposal, TraceSet

WRONG = -1  # an id that no text holds


def adapted(traces: TraceSet, rate: float, seed: int = 0) -> TraceSet:
    """The texts of `traces` with drafts of which each token is right with probability `rate`; the same for a seed.

    The draft is sure of all of them, so that no confidence threshold ends a block.
    """
    draw = Random(seed)
    items = tuple(replace(item, proposals=_proposals(item, rate, draw)) for item in traces.items)
    return TraceSet(traces.target, f"made up, {rate:g} right", {"made": rate, **traces.origin}, items)


def _proposals(item: ItemTrace, rate: float, draw: Random) -> tuple[Proposal, ...]:
    return tuple(
        _proposal(item.target_ids[place : place + len(recorded.ids)], rate, draw)
        for place, recorded in enumerate(item.proposals)
    )


def _proposal(text: tuple[int, ...], rate: float, draw: Random) -> Proposal:
    ids = tuple(token if draw.random() < rate else WRONG for token in text)
    return Proposal(ids, (1.0,) * len(ids))
