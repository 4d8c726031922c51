"""What is asked: items with a fixed seed each, so that every baseline gets the same text to write."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.messages import ChatMessage


@dataclass(frozen=True)
class Item:
    """One request. Its text is decided by prompt and seed alone, not by the drafter."""

    id: str
    prompt: str | tuple[ChatMessage, ...] | tuple[int, ...]
    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    task: str = ""
    answer: str = ""  # what a right answer says, where that can be checked
    ignore_eos: bool = False
    turns: tuple[str, ...] = ()  # what the user of a chat says next, after each answer
