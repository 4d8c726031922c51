"""What device-only serving gives up: right answers of the draft model alone, beside those of the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_client.tokenizer import EdgeTokenizer
from opensled.store import model_path
from opensled_testbed.load.load import Item
from opensled_testbed.load.outcome import CHECKS
from opensled_testbed.traces import ItemTrace, TraceSet


def accuracy(items: Sequence[Item], traces: TraceSet) -> dict[str, Any]:
    """Shares of right answers over those of `items` that have one, all tasks together and each by itself."""
    tokenizer = EdgeTokenizer((model_path(traces.target) / "tokenizer.json").read_bytes())
    by_id = {trace.item: trace for trace in traces.items}
    tasks: dict[str, list[tuple[bool, bool]]] = {}
    for item in items:
        if item.task in CHECKS and item.answer and item.id in by_id:
            tasks.setdefault(item.task, []).append(_right(item, by_id[item.id], tokenizer))
    every = [pair for pairs in tasks.values() for pair in pairs]
    return {**_shares(every), "tasks": {task: _shares(pairs) for task, pairs in tasks.items()}}


def _right(item: Item, trace: ItemTrace, tokenizer: EdgeTokenizer) -> tuple[bool, bool]:
    """Whether the target's answer is right, and the draft model's own."""
    check = CHECKS[item.task]
    target, alone = (tokenizer.decode(ids) for ids in (trace.target_ids, trace.alone_ids))
    return check(target, item.answer), check(alone, item.answer)


def _shares(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    if not pairs:
        return {"items": 0}
    target, alone = (sum(side) / len(pairs) for side in zip(*pairs))
    return {"items": len(pairs), "target": round(target, 4), "draft_alone": round(alone, 4)}
