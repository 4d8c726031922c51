"""The output of a response while it grows: messages and calls of functions, and the events that tell of them."""

import secrets
from collections.abc import Callable
from typing import Any

from http_api.calls import parse_json

Event = dict[str, Any]


class TextItem:
    """A message of one text, or what the model thinks before its answer."""

    def __init__(self, index: int, thinks: bool, is_json: bool = False) -> None:
        """`index`: its place in the output; `is_json`: whether the text is asked to be JSON."""
        self.thinks, self._is_json, self._index = thinks, is_json, index
        prefix, self._part_kind = ("rs", "reasoning_text") if thinks else ("msg", "output_text")
        self._id, self._text = f"{prefix}_{secrets.token_hex(12)}", ""
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> list[Event]:
        added = {"type": "response.output_item.added", "output_index": self._index}
        item = {**self.whole("in_progress"), "content": []}
        return [{**added, "item": item}, self._of_part("content_part.added", part=self._part())]

    def push(self, text: str, logprobs: list[dict[str, Any]]) -> Event:
        self._text += text
        self._logprobs += logprobs
        return self._of_part(f"{self._part_kind}.delta", delta=text, **self._with(logprobs=logprobs))

    def closing(self) -> list[Event]:
        told = self._with(logprobs=self._logprobs)
        return [
            self._of_part(f"{self._part_kind}.done", text=self._text, **told),
            self._of_part("content_part.done", part=self._part()),
        ]

    def whole(self, status: str) -> dict[str, Any]:
        kind = "reasoning" if self.thinks else "message"
        more: dict[str, Any] = {"summary": []} if self.thinks else {"role": "assistant"}
        return {"id": self._id, "type": kind, "status": status, **more, "content": [self._part()]}

    @property
    def is_whole(self) -> bool:
        """Whether it can be read as what was asked for."""
        return not self._is_json or parse_json(self._text) is not None

    def _part(self) -> dict[str, Any]:
        told = self._with(annotations=[], logprobs=list(self._logprobs))
        return {"type": self._part_kind, "text": self._text, **told}

    def _with(self, **told: list[Any]) -> dict[str, list[Any]]:
        """What a message has beside its text."""
        return {} if self.thinks else told

    def _of_part(self, kind: str, **news: object) -> Event:
        place = {"item_id": self._id, "output_index": self._index, "content_index": 0}
        return {"type": f"response.{kind}", **place, **news}


class CallItem:
    """A call of the function `name` of `namespace`, "" = of none."""

    def __init__(self, index: int, call_id: str, namespace: str, name: str) -> None:
        """`index`: its place in the output."""
        self._id, self._index = f"fc_{secrets.token_hex(12)}", index
        self._call_id, self._name, self._arguments = call_id, name, ""
        self._space = {"namespace": namespace} if namespace else {}

    def opening(self) -> list[Event]:
        added = {"type": "response.output_item.added", "output_index": self._index}
        return [{**added, "item": self.whole("in_progress")}]

    def push(self, arguments: str, logprobs: list[dict[str, Any]]) -> Event:
        self._arguments += arguments
        return self._of_arguments("delta", delta=arguments)

    def closing(self) -> list[Event]:
        return [self._of_arguments("done", name=self._name, arguments=self._arguments)]

    @property
    def is_whole(self) -> bool:
        """Whether it can be run."""
        return parse_json(self._arguments) is not None

    def whole(self, status: str) -> dict[str, Any]:
        item = {"id": self._id, "type": "function_call", "status": status, "call_id": self._call_id}
        return {**item, "name": self._name, **self._space, "arguments": self._arguments}

    def _of_arguments(self, kind: str, **news: object) -> Event:
        place = {"item_id": self._id, "output_index": self._index}
        return {"type": f"response.function_call_arguments.{kind}", **place, **news}


class ResponseOutput:
    """The items in their order; at most the last one is still open."""

    def __init__(self, is_json: bool = False) -> None:
        """`is_json`: whether its texts are asked to be JSON."""
        self._is_json = is_json
        self._closed: list[dict[str, Any]] = []
        self._open: TextItem | CallItem | None = None

    def add_text(self, text: str, logprobs: list[dict[str, Any]], thinks: bool = False) -> list[Event]:
        """To the answer, or to what the model `thinks`."""
        events: list[Event] = []
        if not (isinstance(self._open, TextItem) and self._open.thinks is thinks):
            events = self._begin(TextItem, thinks, self._is_json and not thinks)
        assert self._open
        return [*events, self._open.push(text, logprobs)]

    def begin_call(self, call_id: str, namespace: str, name: str) -> list[Event]:
        return self._begin(CallItem, call_id, namespace, name)

    def _begin(self, kind: Callable[..., TextItem | CallItem], *told: object) -> list[Event]:
        events = self.close("completed")
        self._open = kind(len(self._closed), *told)
        return events + self._open.opening()

    def add_arguments(self, arguments: str) -> list[Event]:
        assert self._open
        return [self._open.push(arguments, [])]

    def finish(self, status: str) -> list[Event]:
        """Close the last item with this status; an answer without a word is an empty message, if it is whole."""
        events: list[Event] = []
        if status == "completed" and isinstance(self._open, TextItem) and self._open.thinks:
            events = self.close(status)
        if self._open is None and not any(item["type"] != "reasoning" for item in self._closed):
            events += self._begin(TextItem, False, self._is_json)
        return events + self.close(status)

    def close(self, status: str) -> list[Event]:
        """Close the item that is open, if one is."""
        if self._open is None:
            return []
        status = status if self._open.is_whole else "incomplete"
        item, events = self._open.whole(status), self._open.closing()
        done = {"type": "response.output_item.done", "output_index": len(self._closed), "item": item}
        self._closed.append(item)
        self._open = None
        return [*events, done]

    @property
    def status(self) -> str:
        """Of all: completed if each item is."""
        states = {item["status"] for item in self._closed}
        return "completed" if states == {"completed"} else "incomplete"

    def whole(self) -> list[dict[str, Any]]:
        """The items that are closed."""
        return list(self._closed)
