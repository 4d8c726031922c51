"""The output of a response while it grows: messages and calls of functions, and the events that tell of them."""

import secrets
from typing import Any

from http_api.calls import parse_json

Event = dict[str, Any]


class MessageItem:
    """A message of one text."""

    def __init__(self, index: int, is_json: bool) -> None:
        """`index`: its place in the output; `is_json`: whether the text is asked to be JSON."""
        self._is_json = is_json
        self._id, self._index = f"msg_{secrets.token_hex(12)}", index
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []

    def opening(self) -> list[Event]:
        added = {"type": "response.output_item.added", "output_index": self._index}
        item = {**self.whole("in_progress"), "content": []}
        return [{**added, "item": item}, self._of_part("content_part.added", part=self._part())]

    def push(self, text: str, logprobs: list[dict[str, Any]]) -> Event:
        self._text += text
        self._logprobs += logprobs
        return self._of_part("output_text.delta", delta=text, logprobs=logprobs)

    def closing(self) -> list[Event]:
        return [
            self._of_part("output_text.done", text=self._text, logprobs=self._logprobs),
            self._of_part("content_part.done", part=self._part()),
        ]

    def whole(self, status: str) -> dict[str, Any]:
        item = {"id": self._id, "type": "message", "status": status, "role": "assistant"}
        return {**item, "content": [self._part()]}

    @property
    def is_whole(self) -> bool:
        """Whether it can be read as what was asked for."""
        return not self._is_json or parse_json(self._text) is not None

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": self._text,
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def _of_part(self, kind: str, **news: object) -> Event:
        place = {"item_id": self._id, "output_index": self._index, "content_index": 0}
        return {"type": f"response.{kind}", **place, **news}


class ThoughtsItem:
    """What the model thinks before its answer."""

    is_whole = True

    def __init__(self, index: int) -> None:
        """`index`: its place in the output."""
        self._id, self._index = f"rs_{secrets.token_hex(12)}", index
        self._text = ""

    def opening(self) -> list[Event]:
        added = {"type": "response.output_item.added", "output_index": self._index}
        item = {**self.whole("in_progress"), "content": []}
        return [{**added, "item": item}, self._of_part("content_part.added", part=self._part())]

    def push(self, text: str) -> Event:
        self._text += text
        return self._of_part("reasoning_text.delta", delta=text)

    def closing(self) -> list[Event]:
        return [
            self._of_part("reasoning_text.done", text=self._text),
            self._of_part("content_part.done", part=self._part()),
        ]

    def whole(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": [self._part()],
        }

    def _part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self._text}

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

    def push(self, arguments: str) -> Event:
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
        self._open: MessageItem | CallItem | ThoughtsItem | None = None

    def add_thoughts(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, ThoughtsItem):
            events = self.close("completed")
            self._open = ThoughtsItem(len(self._closed))
            events += self._open.opening()
        return [*events, self._open.push(text)]

    def add_text(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        events: list[Event] = []
        if not isinstance(self._open, MessageItem):
            events = self.close("completed")
            self._open = MessageItem(len(self._closed), self._is_json)
            events += self._open.opening()
        return [*events, self._open.push(text, logprobs)]

    def begin_call(self, call_id: str, namespace: str, name: str) -> list[Event]:
        events = self.close("completed")
        self._open = CallItem(len(self._closed), call_id, namespace, name)
        return events + self._open.opening()

    def add_arguments(self, arguments: str) -> list[Event]:
        assert isinstance(self._open, CallItem)
        return [self._open.push(arguments)]

    def finish(self, status: str) -> list[Event]:
        """Close the last item with this status; an answer without a word is an empty message, if it is whole."""
        events: list[Event] = []
        if status == "completed" and isinstance(self._open, ThoughtsItem):
            events = self.close(status)
        if self._open is None and not any(item["type"] != "reasoning" for item in self._closed):
            self._open = MessageItem(len(self._closed), self._is_json)
            events += self._open.opening()
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
