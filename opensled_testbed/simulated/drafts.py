"""What a simulation knows of the recorded items."""

from __future__ import annotations

from functools import lru_cache

from opensled_testbed.traces import ItemTrace, TraceSet
from verify_server.session_manager import SessionLimits

MAX_DRAFT = SessionLimits.max_draft


class Script:
    """One item: its recorded text, and how long it might have become."""

    __slots__ = ("alone", "item", "last", "prompt", "reason", "text", "trace")

    def __init__(self, trace: ItemTrace, last: int) -> None:
        self.trace, self.item, self.reason = trace, trace.item, trace.finish_reason
        self.prompt, self.text, self.alone = (
            len(ids) for ids in (trace.prompt_ids, trace.target_ids, trace.alone_ids)
        )
        self.last = last  # length of the text at which max_tokens would end it


class _Same:
    """A trace set by identity: its content takes longer to hash than to use."""

    def __init__(self, traces: TraceSet) -> None:
        self.traces = traces

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.traces is self.traces

    def __hash__(self) -> int:
        return id(self.traces)


def scripts(traces: TraceSet) -> list[Script]:
    """Of all items, in their order; made once for each trace set."""
    return _scripts(_Same(traces))


@lru_cache(maxsize=16)
def _scripts(same: _Same) -> list[Script]:
    items = same.traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    return [Script(item, last) for item, last in zip(items, lengths)]
