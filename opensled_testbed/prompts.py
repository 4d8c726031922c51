"""What devices are asked when their answers are compared with the target alone: seeded prompts of different tasks."""

from __future__ import annotations

import json
from typing import Any

from opensled.store import heldout_path

TARGET = "tiny"


def prompts_of(device: int, count: int, max_tokens: int, seed: int = 0) -> list[dict[str, Any]]:
    """Request bodies of different tasks: the first greedy, the others sampled with a seed."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for line in heldout_path().read_text().splitlines():
        item = json.loads(line)
        if item.get("messages"):
            tasks.setdefault(item["task"], []).append(item)
    pools = list(tasks.values())
    bodies = []
    for turn in range(count):
        pool = pools[(device + turn) % len(pools)]
        sampling = {"temperature": 0.8, "seed": seed + 100 * device + turn} if turn else {"temperature": 0}
        messages = pool[(seed + device + turn // len(pools)) % len(pool)]["messages"]
        bodies.append({"model": TARGET, "messages": messages, "max_tokens": max_tokens, **sampling})
    return bodies
