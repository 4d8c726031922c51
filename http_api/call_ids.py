"""Ids of earlier calls and of their results, for clients that leave them out."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from opensled.core.messages import ChatMessage, ToolCall


def with_ids(turns: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """`turns` with an id at each call, and at each result that of its call; the result of no call may have none."""
    made: list[ChatMessage] = []
    waiting = UnansweredCalls(())
    count = 0
    for turn in turns:
        if turn.tool_calls:
            calls = tuple(
                replace(call, id=call.id or f"call_{number}")
                for number, call in enumerate(turn.tool_calls, count + 1)
            )
            count += len(calls)
            waiting = UnansweredCalls(calls)
            turn = replace(turn, tool_calls=calls)
        elif turn.role == "tool":
            turn = replace(turn, tool_call_id=waiting.answer(turn))
        made.append(turn)
    return tuple(made)


class UnansweredCalls:
    """Calls of one turn that have no result yet, in their order."""

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self._names = OrderedDict((call.id, call.name) for call in calls)  # by id
        self._ids: dict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)  # by name
        for id, name in self._names.items():
            self._ids[name][id] = None

    def answer(self, result: ChatMessage) -> str:
        """The id of the call of a result: its own, or that of the next call, of the same name if it has one."""
        waiting: Iterable[str] = self._ids.get(result.name, ()) if result.name else self._names
        id = result.tool_call_id or next(iter(waiting), "")
        if (name := self._names.pop(id, None)) is not None:
            del self._ids[name][id]
        return id
