"""Ids of earlier calls and of their results, for clients that leave them out."""

from collections.abc import Sequence
from dataclasses import replace

from opensled.messages import ChatMessage, ToolCall


def with_ids(turns: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """`turns` with an id at each call, and at each result that of its call; the result of no call may have none."""
    made: list[ChatMessage] = []
    waiting: list[ToolCall] = []  # calls of the latest turn that has any, without a result
    count = 0
    for turn in turns:
        if turn.tool_calls:
            waiting = [
                replace(call, id=call.id or f"call_{number}")
                for number, call in enumerate(turn.tool_calls, count + 1)
            ]
            count += len(waiting)
            turn = replace(turn, tool_calls=tuple(waiting))
        elif turn.role == "tool" and (call := _answered(turn, waiting)):
            waiting.remove(call)
            turn = replace(turn, tool_call_id=call.id)
        made.append(turn)
    return tuple(made)


def _answered(result: ChatMessage, waiting: Sequence[ToolCall]) -> ToolCall | None:
    """The call with the id of `result`; without an id the first one left, of the same name if it has one."""
    for call in waiting:
        if call.id == result.tool_call_id if result.tool_call_id else result.name in ("", call.name):
            return call
    return None
