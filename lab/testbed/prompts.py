"""What devices are asked when their answers are compared with the target alone: seeded prompts of different tasks."""

import json
from typing import Any

from lab.training.heldout import heldout_path
from opensled.core.messages import ChatMessage

TARGET = "tiny"
Chat = list[dict[str, str]]  # messages of {"role", "content"}


def heldout() -> list[dict[str, Any]]:
    """The held-out items, as their file has them."""
    return [json.loads(line) for line in heldout_path().read_text("utf-8").splitlines()]


def heldout_chats() -> list[list[Chat]]:
    """The chats of each task that has some."""
    tasks: dict[str, list[Chat]] = {}
    for item in heldout():
        if item.get("messages"):
            tasks.setdefault(item["task"], []).append(item["messages"])
    return list(tasks.values())


def messages_of(chat: Chat) -> tuple[ChatMessage, ...]:
    return tuple(ChatMessage(turn["role"], turn["content"]) for turn in chat)


def prompts_of(device: int, count: int, max_tokens: int, seed: int = 0) -> list[dict[str, Any]]:
    """Request bodies of different tasks: the first greedy, the others sampled with a seed."""
    pools = heldout_chats()
    bodies = []
    for turn in range(count):
        pool = pools[(device + turn) % len(pools)]
        sampling = {"temperature": 0.8, "seed": seed + 100 * device + turn} if turn else {"temperature": 0}
        messages = pool[(seed + device + turn // len(pools)) % len(pool)]
        bodies.append({"model": TARGET, "messages": messages, "max_tokens": max_tokens, **sampling})
    return bodies
