"""The turns of a chat, from Ollama's form to OpenAI's; http_api/chat_messages.py then reads and checks them.

Ollama's calls of tools need no id, and the result of a tool need not say which call it
answers.
"""

from collections import deque
from typing import Any

from http_api.fields import Fields, fields_of, require_object
from opensled.errors import InvalidRequest, Unsupported

OWN = ("content", "images", "tool_calls", "tool_name")  # read here; the rest has OpenAI's form


def openai_turns(value: object, sees: bool = False) -> object:
    """The field `messages`; `sees`: whether the target reads pictures.

    What has no known form is left as it is, for the reader to refuse.
    """
    if not isinstance(value, list):
        return value
    calls = CallIds()
    return [_turn(turn, f"messages[{index}]", calls, sees) for index, turn in enumerate(value)]


class CallIds:
    """The ids of calls: those of the client, else the next free number."""

    def __init__(self) -> None:
        self._count = 0
        self._unanswered: deque[str] = deque()  # calls of the latest turn that has any

    def begin(self) -> None:
        """A further turn with calls."""
        self._unanswered.clear()

    def new(self, given: str) -> str:
        self._count += 1
        id = given or f"call_{self._count}"
        self._unanswered.append(id)
        return id

    def answered(self) -> str:
        """The call that the next result belongs to: results come in the order of their calls. "" = none is left."""
        return self._unanswered.popleft() if self._unanswered else ""


def _turn(value: object, where: str, calls: CallIds, sees: bool) -> object:
    if not isinstance(value, dict):
        return value
    fields = Fields({name: value[name] for name in OWN if name in value}, f"{where}.")
    turn = {name: field for name, field in value.items() if name not in OWN}
    content = fields.take("content")
    turn["content"] = with_images("" if content is None else content, fields, sees)
    if (made := fields.take("tool_calls")) is not None:
        turn["tool_calls"] = _calls(made, fields.path("tool_calls"), calls)
    if name := fields.text("tool_name", ""):
        turn["name"] = name
    if turn.get("role") == "tool" and turn.get("tool_call_id") is None:
        turn["tool_call_id"] = calls.answered()
    return turn


def with_images(content: object, fields: Fields, sees: bool) -> object:
    """A turn's content in OpenAI's form; Ollama's pictures, in base64 without a type, come before the text.

    `sees`: whether the target reads pictures; else there may be none.
    """
    images = fields.take("images")
    if images in (None, []):
        return content
    if not sees:
        path = fields.path("images")
        raise Unsupported(f"{path}: this model reads no pictures; leave them out, or ask one that does", path)
    if not isinstance(images, list):
        raise InvalidRequest(f"{fields.path('images')} must be a list", fields.path("images"))
    urls = [_data_url(image) if isinstance(image, str) else image for image in images]
    return [
        *[{"type": "image_url", "image_url": {"url": url}} for url in urls],
        {"type": "text", "text": content},
    ]


def _data_url(image: str) -> str:
    """A picture in base64; some clients send it as a data URL already, or a URL, which the reader refuses."""
    return image if ":" in image[:100] else f"data:image;base64,{image}"


def _calls(value: object, where: str, calls: CallIds) -> object:
    if not isinstance(value, list) or not value:
        return value
    calls.begin()
    return [_call(call, f"{where}[{index}]", calls) for index, call in enumerate(value)]


def _call(value: object, where: str, calls: CallIds) -> dict[str, Any]:
    call = require_object(value, where)
    return {**call, "id": calls.new(fields_of(call, where).text("id", ""))}
