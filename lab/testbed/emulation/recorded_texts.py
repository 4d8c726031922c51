"""Which recorded item a text of a session belongs to, for the drafters that replay recordings beside a target."""

from collections.abc import Iterable

from lab.testbed.traces import ItemTrace
from verify_server.round.drafter import Ask


class RecordedTexts:
    """All that the sessions of a server may write."""

    def __init__(self, items: Iterable[ItemTrace]) -> None:
        self._items = {item.prompt_ids: item for item in items}
        self._lengths = sorted({len(prompt) for prompt in self._items})
        self._traces: dict[int, ItemTrace] = {}  # by session

    def of(self, ask: Ask) -> ItemTrace:
        """The item of a session's text; raises AssertionError for one that was not recorded."""
        if ask.session not in self._traces:
            self._traces[ask.session] = self._find(ask)
        return self._traces[ask.session]

    def _find(self, ask: Ask) -> ItemTrace:
        text = tuple(ask.tokens)
        for length in self._lengths:
            trace = self._items.get(text[:length])
            if trace is not None and trace.target_ids[: len(text) - length] == text[length:]:
                return trace
        raise AssertionError(f"nothing is recorded for a text of {len(text)} tokens")
