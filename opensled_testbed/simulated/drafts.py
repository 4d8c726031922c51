"""What a simulation knows of the recorded items."""

from __future__ import annotations

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


def scripts(traces: TraceSet) -> list[Script]:
    """Of all items, in their order."""
    items = traces.items
    # How long an item that ended by itself might have become is not recorded; its neighbours say it.
    longest = max((len(item.target_ids) for item in items), default=0)
    lengths = [len(item.target_ids) if item.finish_reason == "length" else longest for item in items]
    return [Script(item, last) for item, last in zip(items, lengths)]
