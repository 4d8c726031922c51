"""One task with one valid reply, and the split that decides whether training may see it."""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "heldout"]

HELDOUT_ONE_IN = 20


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt and one reply to it.

    `text` is what the user says, or the raw text to be continued when `chat` is False. `history` holds the
    turns before it, `(role, content)`, a system message included. `answer` is the canonical form a reply is
    checked against, None where several replies are right. `key` decides the split: items that would give each
    other's answer away (12 + 30 and 30 + 12) share one; it is the text itself unless a task says otherwise.
    """

    task: str
    text: str
    reply: str
    answer: str | None = None
    history: tuple[tuple[str, str], ...] = ()
    chat: bool = True
    key: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": text} for role, text in (*self.history, ("user", self.text))]

    @property
    def split(self) -> Split:
        return split_of(self.key or self.text)


@dataclass(frozen=True, slots=True)
class Task:
    """A family of items. `check(reply, answer)` is None for open-ended tasks; `share` weighs items in training."""

    name: str
    draw: Callable[[random.Random], Item]
    share: float
    check: Callable[[str, str], bool] | None = None

    def draw_from(self, rng: random.Random, split: Split) -> Item:
        """The next item of `rng` that belongs to `split`; one in 20 draws is held out."""
        while True:
            item = self.draw(rng)
            if item.split == split:
                return item


def split_of(key: str) -> Split:
    """By hash and not by chance, so that every run, seed and phrasing order agrees on what is held out."""
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_ONE_IN == 0 else "train"
