"""Chats of real text for figure `peer`: passages of this project's own documents, a system prompt shared by all.

No two chats ask the same, so that a server's cache holds the system prompt, as in real chats, but no whole prompt.
"""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

from lab.testbed.prompts import Chat

DOCUMENTS = Path(__file__).parents[2] / "docs"
SHORT, LONG = "40 tokens", "800 tokens"
RULES = "You are a helpful assistant. Be brief."
QUESTION = "What does this mean?"
SHARED, OWN = 380, 370  # tokens of the manual in a long system prompt, and of the passage that is asked about
SHORT_OWN = 12  # tokens of a short prompt's passage

Count = Callable[[str], int]  # tokens of a text


class Chats:
    """Ever new chats of one kind."""

    def __init__(self, kind: str, count: Count) -> None:
        words = cycle(_words())
        self.system = RULES
        if kind == LONG:
            self.system = f"{RULES} The manual begins:\n{_passage(words, SHARED, count)}"
        self._words, self._own, self._count = words, OWN if kind == LONG else SHORT_OWN, count

    def greeting(self) -> Chat:
        """The system prompt, and next to nothing behind it."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": "Hello!"}]

    def next(self) -> Chat:
        """A chat that no other one equals."""
        passage = _passage(self._words, self._own, self._count)
        question = f"{passage}\n\n{QUESTION}" if self._own == OWN else f"{passage}: {QUESTION}"
        return [{"role": "system", "content": self.system}, {"role": "user", "content": question}]


def _words() -> list[str]:
    """Of all documents that are written by hand, in the order of their names."""
    pages = [path.read_text("utf-8") for path in sorted(DOCUMENTS.glob("*.md"))]
    return [word for page in pages for word in page.split()]


def _passage(words: Iterator[str], tokens: int, count: Count) -> str:
    """The next words, about so many tokens."""
    taken: list[str] = []
    length = 0
    while length < tokens:
        taken.append(next(words))
        length += count(f" {taken[-1]}")
    return " ".join(taken)
