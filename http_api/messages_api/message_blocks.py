"""The content of a message while it grows: thoughts, texts and calls of tools, and the events that tell of them."""

from typing import Any

from http_api.calls import parse_json

Event = dict[str, Any]


class Block:
    """One block: thoughts, a text, or the JSON text of a call's input."""

    def __init__(self, empty: dict[str, Any], delta: str, piece: str) -> None:
        """`empty`: the block as it begins; `delta`, `piece`: the type of its deltas, and the name of what they hold."""
        self.empty, self._delta, self._piece = empty, delta, piece
        self.text = ""

    def push(self, text: str) -> dict[str, str]:
        self.text += text
        return {"type": self._delta, self._piece: text}

    def whole(self) -> dict[str, Any]:
        """The finished block. A call that is cut off becomes a text block, so that no client runs it."""
        if self.empty["type"] != "tool_use":
            return {**self.empty, self._piece: self.text}
        given = parse_json(self.text)
        if given is not None:
            return {**self.empty, "input": given}
        return {"type": "text", "text": f'{{"name": "{self.empty["name"]}", "arguments": {self.text}'}


class MessageContent:
    """The blocks in their order; the last one may be open."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._is_open = False

    def add_text(self, text: str) -> list[Event]:
        return self._add({"type": "text", "text": ""}, text)

    def add_thought(self, text: str) -> list[Event]:
        """Thoughts have an empty signature: only Anthropic's service signs them."""
        return self._add({"type": "thinking", "thinking": "", "signature": ""}, text)

    def _add(self, empty: dict[str, Any], text: str) -> list[Event]:
        """To the open block, or to a new one."""
        kind, events = empty["type"], list[Event]()
        if not (self._is_open and self._blocks[-1].empty["type"] == kind):
            events = self._begin(Block(empty, f"{kind}_delta", kind))
        return [*events, self._delta(text)]

    def begin_call(self, id: str, name: str) -> list[Event]:
        empty = {"type": "tool_use", "id": id, "name": name, "input": {}}
        return self._begin(Block(empty, "input_json_delta", "partial_json"))

    def add_input(self, text: str) -> list[Event]:
        return [self._delta(text)]

    def close(self) -> list[Event]:
        """Close the block that is open, if one is."""
        events = [self._about_last("stop")] if self._is_open else []
        self._is_open = False
        return events

    def whole(self) -> list[dict[str, Any]]:
        return [block.whole() for block in self._blocks]

    def _begin(self, block: Block) -> list[Event]:
        events = self.close()
        self._blocks.append(block)
        self._is_open = True
        return [*events, self._about_last("start", content_block=block.empty)]

    def _delta(self, text: str) -> Event:
        return self._about_last("delta", delta=self._blocks[-1].push(text))

    def _about_last(self, kind: str, **news: object) -> Event:
        return {"type": f"content_block_{kind}", "index": len(self._blocks) - 1, **news}
