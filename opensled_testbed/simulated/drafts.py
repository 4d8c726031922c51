"""What a simulation knows of the recorded items: texts and blocks as lengths.

A block depends on its place and its length, so it is looked up in the hot loop, with how far it agrees with the text.
With that the position rules (`opensled.protocol.rebase`, `common_prefix`) are comparisons of numbers; a test holds
them against the originals.
"""

from __future__ import annotations

from opensled_testbed.traces import ItemTrace, TraceSet
from verify_server.session_manager import SessionLimits

MAX_DRAFT = SessionLimits.max_draft


class Block:
    """A draft block of `tokens` tokens that follow the first `base` tokens of an item's text."""

    __slots__ = ("base", "reach", "tokens")

    def __init__(self, base: int, tokens: int, reach: int) -> None:
        self.base = base
        self.tokens = tokens
        self.reach = reach  # tokens at its head that are the text's

    def cut(self, longest: int) -> Block:
        """Its first `longest` tokens, where no more are asked for."""
        if self.tokens <= longest:
            return self
        return Block(self.base, longest, min(self.reach, longest))

    def rest_at(self, committed: int) -> int | None:
        """Tokens that still draft beyond the first `committed` tokens of the text; None = stale."""
        since = committed - self.base
        return self.tokens - since if since <= self.reach else None


class Script:
    """One item: its text, and how the drafts after each of its places agree with it."""

    __slots__ = ("_blocks", "_tokens", "alone", "item", "last", "prompt", "reason", "text", "trace")

    def __init__(self, trace: ItemTrace, last: int) -> None:
        self.trace, self.item, self.reason = trace, trace.item, trace.finish_reason
        self.prompt, self.text, self.alone = (
            len(ids) for ids in (trace.prompt_ids, trace.target_ids, trace.alone_ids)
        )
        self.last = last  # length of the text at which max_tokens would end it
        self._tokens = (*trace.prompt_ids, *trace.target_ids)
        self._blocks: dict[tuple[int, int], Block] = {}

    def truth(self, place: int) -> tuple[int, ...]:
        """The prompt, and the first `place` tokens of the text."""
        return self._tokens[: self.prompt + place]

    def room(self, place: int) -> int:
        """Draft tokens that can still commit: the very last one of a sequence is the bonus token (generate.py)."""
        return max(0, min(self.last - place - 1, MAX_DRAFT))

    def block(self, place: int, tokens: int) -> Block:
        """The first `tokens` tokens drafted after `place` tokens of the text."""
        found = self._blocks.get((place, tokens))
        if found is None:
            found = self._blocks[place, tokens] = Block(place, tokens, self.trace.right(place, tokens))
        return found


def scripts(traces: TraceSet) -> list[Script]:
    """Of all items, in their order."""
    items = traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    return [Script(item, last) for item, last in zip(items, lengths)]
