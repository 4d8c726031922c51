"""What a device would draft at every place of every recorded item: the product's stop rule over recorded proposals.

A block depends on its place and on the length that was asked for, so it is looked up in the hot loop: its length, the
passes it cost, and how far it agrees with the text. With that the position rules (`opensled.protocol.rebase`,
`common_prefix`) are comparisons of numbers; a test holds them against the originals.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from edge_client.lengths.base import pulled
from edge_client.lengths.fixed import FixedLength
from opensled.messages import DraftBlock, DraftToken
from opensled_testbed.traces import ItemTrace, TraceSet
from verify_server.session_manager import SessionLimits

MAX_DRAFT = SessionLimits.max_draft


class Block:
    """A draft block of `tokens` tokens that follow the first `base` tokens of an item's text."""

    __slots__ = ("base", "passes", "reach", "tokens")

    def __init__(self, base: int, tokens: int, passes: int, reach: int) -> None:
        self.base = base
        self.tokens = tokens
        self.passes = passes  # of the draft model; one more than tokens when the stop rule threw one away
        self.reach = reach  # tokens at its head that are the text's

    def cut(self, longest: int) -> Block:
        """Its first `longest` tokens: where no more are asked for, or it was interrupted."""
        if self.tokens <= longest:
            return self
        return Block(self.base, longest, self.passes, min(self.reach, longest))

    def rest_at(self, committed: int) -> int | None:
        """Tokens that still draft beyond the first `committed` tokens of the text; None = stale."""
        since = committed - self.base
        return self.tokens - since if since <= self.reach else None


class Script:
    """One item: its text, and the blocks that a device drafts after each of its places."""

    __slots__ = (
        "_blocks",
        "_drafts",
        "_reach",
        "_stop",
        "_trace",
        "alone",
        "item",
        "last",
        "prompt",
        "reason",
        "text",
    )

    def __init__(self, trace: ItemTrace, stop: FixedLength, last: int) -> None:
        """`stop` says which tokens belong to a block; how many were asked for is said for each of them."""
        self._trace, self._stop = trace, stop
        self.item, self.reason = trace.item, trace.finish_reason
        self.prompt, self.text, self.alone = (
            len(ids) for ids in (trace.prompt_ids, trace.target_ids, trace.alone_ids)
        )
        self.last = last  # length of the text at which max_tokens would end it
        self._reach: dict[int, int] = {}
        self._blocks: dict[tuple[int, int], Block] = {}
        self._drafts: dict[tuple[int, int], DraftBlock] = {}

    def room(self, place: int) -> int:
        """Draft tokens that can still commit: the very last one of a sequence is the bonus token (generate.py)."""
        return max(0, min(self.last - place - 1, MAX_DRAFT))

    def reach(self, place: int) -> int:
        """Tokens that a device would draft right after a place, one after the other, before its first wrong one."""
        found = self._reach.get(place)
        if found is None:
            found = self._reach[place] = self._trace.right(place, self.text)
        return found

    def block(self, place: int, length: int) -> Block:
        """What is drafted after `place` tokens of the text where up to `length` are asked for."""
        found = self._blocks.get((place, length))
        if found is None:
            found = self._blocks[place, length] = self._block(place, length)
        return found

    def draft(self, block: Block) -> DraftBlock:
        """As rules of blocks know it."""
        found = self._drafts.get((block.base, block.tokens))
        if found is None:
            tokens = tuple(self._drafted(block.base))[: block.tokens]
            found = self._drafts[block.base, block.tokens] = DraftBlock(self.prompt + block.base, tokens)
        return found

    def _block(self, place: int, length: int) -> Block:
        counted = _Counted(self._drafted(place))
        taken = len(tuple(pulled(self._stop, counted, length, _never)))
        return Block(place, taken, counted.count, min(taken, self.reach(place)))

    def _drafted(self, place: int) -> Iterator[DraftToken]:
        for index in range(MAX_DRAFT):
            found = self._trace.proposed(place, index)
            if found is None:
                return
            yield DraftToken(*found)


class _Counted:
    """Proposals that are counted as they are drawn."""

    def __init__(self, proposals: Iterator[DraftToken]) -> None:
        self._proposals, self.count = proposals, 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> DraftToken:
        token = next(self._proposals)
        self.count += 1
        return token


def _never() -> bool:
    return False


class _Same:
    """A trace set by identity: its content takes longer to hash than to use."""

    def __init__(self, traces: TraceSet) -> None:
        self.traces = traces

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.traces is self.traces

    def __hash__(self) -> int:
        return id(self.traces)


def scripts(traces: TraceSet, stop: FixedLength) -> list[Script]:
    """Of all items, in their order; made once for each trace set and rule."""
    return _scripts(_Same(traces), stop)


@lru_cache(maxsize=16)
def _scripts(same: _Same, stop: FixedLength) -> list[Script]:
    items = same.traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    return [Script(item, stop, last) for item, last in zip(items, lengths)]
