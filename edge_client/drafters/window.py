"""What a draft model reads of a long text: its beginning and its end, as many tokens as are soon read.

A device reads a prompt of 1,000 tokens for seconds, while the server answers. Drafts need little of it: the end says
how the answer goes on, and the beginning what is asked (and it is what attention leans on: "attention sinks",
arXiv 2309.17453). The draft alone suffers; the server reads everything.
"""

from collections.abc import Sequence

from hw_profiles.fading import FadingRatio
from opensled.core.protocol import common_prefix

HEAD = 0.25  # share of a window that is taken from the beginning of the text
# Chosen with real_prompts.py: seconds of reading for which drafts may be late, and tokens that they need.
READING_S, LEAST = 1.5, 256
HALF_LIFE = 512.0  # tokens read, after which half of what was measured is forgotten
ENOUGH = 16  # tokens read from which on the speed is known


class Window:
    """Tokens of a text that the drafters of one device read; one for all of them, for they share the processor."""

    def __init__(self, tokens: int | None = None) -> None:
        """`tokens`: as told; 0 = by the measured speed, None = the whole text."""
        self._tokens = tokens
        self._speed = FadingRatio(HALF_LIFE)  # tokens read per second

    @property
    def wants_speed(self) -> bool:
        """Whether a pass of ENOUGH tokens should be timed before the first text."""
        return self._tokens == 0 and self._speed.seen < ENOUGH

    def most(self, context_length: int) -> int:
        """Tokens of a text to read at most; of one that does not fit into the context, half of that."""
        if self._tokens:
            return min(self._tokens, context_length)
        if self._tokens is None or self.wants_speed:
            return context_length
        return min(max(LEAST, int(READING_S * self._speed.ratio)), context_length)

    def took(self, tokens: int, seconds: float) -> None:
        """A pass read `tokens` tokens in `seconds`. Threads may lose one such observation."""
        self._speed.add(tokens, seconds, age=tokens)


def select_text(
    text: Sequence[int], known: Sequence[int], left_out: int, most: int, context_length: int
) -> tuple[int, list[int]]:
    """How many tokens of `text` to leave out, and the rest: at most `most` tokens, or what is nearly read.

    `known` was seen of the text before, with `left_out` tokens left out: the next turn of a conversation goes on there
    if no more than `most` tokens are new.
    """
    if left_out < len(text):
        seen = _without(text, left_out, most)
        agreed = common_prefix(known, seen)
        goes_on = not left_out or agreed > HEAD * most  # what is left out of both texts is at the same place
        if goes_on and len(seen) - agreed <= most and len(seen) < context_length:
            return left_out, seen
    left_out = max(0, len(text) - (most if most < context_length else context_length // 2))
    return left_out, _without(text, left_out, most)


def _without(text: Sequence[int], count: int, most: int) -> list[int]:
    """`text` without `count` tokens after its beginning."""
    head = int(HEAD * most) if count else 0
    return [*text[:head], *text[head + count :]]
