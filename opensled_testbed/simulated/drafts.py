"""What a device would draft at every place of every recorded item: the product's stop rule over recorded proposals.

A block depends on its place and on the length that was asked for, so it is looked up in the hot loop: its length, the
passes it cost, and how far it agrees with the text. With that the position rules (`opensled.protocol.rebase`,
`common_prefix`) are comparisons of numbers; a test holds them against the originals.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from edge_client.stop import StopRule
from opensled.messages import DraftToken
from opensled.protocol import common_prefix
from opensled_testbed.traces import ItemTrace, Proposal, TraceSet
from verify_server.sessions import DoorLimits

MAX_DRAFT = DoorLimits.max_draft
NOTHING = Proposal((), ())


class Block:
    """A draft block of `tokens` tokens that follow the first `base` tokens of an item's text."""

    __slots__ = ("base", "kept", "passes", "reach", "tokens")

    def __init__(self, base: int, tokens: int, passes: int, reach: int, kept: int) -> None:
        self.base = base
        self.tokens = tokens
        self.passes = passes  # of the draft model; one more than tokens when the stop rule threw one away
        self.reach = reach  # tokens at its head that are the text's
        self.kept = kept  # positions after `base` in the draft model's cache that the text will confirm

    def cut(self, longest: int) -> Block:
        """As it is sent when only so many tokens of it are asked for any more."""
        if self.tokens <= longest:
            return self
        return Block(self.base, longest, self.passes, min(self.reach, longest), self.kept)

    def rest_at(self, committed: int) -> int | None:
        """Tokens that still draft beyond the first `committed` tokens of the text; None = stale."""
        since = committed - self.base
        return self.tokens - since if since <= self.reach else None


class Script:
    """One item: its text, and the block that a device drafts after each of its places."""

    __slots__ = ("_hinted", "_stop", "_trace", "alone", "blocks", "item", "last", "prompt", "reason", "text")

    def __init__(self, trace: ItemTrace, stop: StopRule, last: int) -> None:
        self._trace, self._stop = trace, stop
        self.item, self.reason = trace.item, trace.finish_reason
        self.prompt, self.text, self.alone = (
            len(ids) for ids in (trace.prompt_ids, trace.target_ids, trace.alone_ids)
        )
        self.last = last  # length of the text at which max_tokens would end it
        self.blocks = [_block(trace, place, stop, last) for place in range(self.text)]
        self._hinted: dict[tuple[int, int], Block] = {}

    def block(self, place: int, hint: int | None) -> Block:
        """The block drafted after `place` tokens of the text under the server's hint, None = it gave none."""
        if hint is None:
            return self.blocks[place]
        found = self._hinted.get((place, hint))
        if found is None:
            found = self._hinted[place, hint] = _block(self._trace, place, self._stop, self.last, hint)
        return found


def _block(trace: ItemTrace, place: int, stop: StopRule, last: int, hint: int | None = None) -> Block:
    proposal = trace.proposals[place] if place < len(trace.proposals) else NOTHING
    proposed = [DraftToken(*pair) for pair in zip(proposal.ids, proposal.confidences)]
    counted = _Counted(iter(proposed))
    # The very last token of a sequence needs no draft: it is the bonus token (edge_client/generate.py).
    room = max(0, min(last - place - 1, MAX_DRAFT))
    taken = len(stop.take(counted, room, _never, hint))
    agreed = common_prefix(proposal.ids[: counted.count], trace.target_ids[place:])
    kept = max(0, min(counted.count - 1, agreed))
    return Block(place, taken, counted.count, min(taken, agreed), kept)


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


def scripts(traces: TraceSet, stop: StopRule) -> list[Script]:
    """Of all items, in their order; made once for each trace set and rule."""
    return _scripts(_Same(traces), stop)


@lru_cache(maxsize=16)
def _scripts(same: _Same, stop: StopRule) -> list[Script]:
    items = same.traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    return [Script(item, stop, last) for item, last in zip(items, lengths)]
