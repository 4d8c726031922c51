"""The turns of a chat, from Ollama's form to OpenAI's; http_api/chat_messages.py then reads and checks them."""

from typing import Any

from http_api.fields import Fields
from opensled.core.errors import InvalidRequest, Unsupported

OWN = ("content", "images", "tool_name")  # read here; the rest has OpenAI's form


def openai_turns(value: object, sees: bool = False) -> object:
    """The field `messages`; `sees`: whether the target reads pictures.

    What has no known form is left as it is, for the reader to refuse.
    """
    if not isinstance(value, list):
        return value
    return [_turn(turn, f"messages[{index}]", sees) for index, turn in enumerate(value)]


def _turn(value: object, where: str, sees: bool) -> object:
    if not isinstance(value, dict):
        return value
    fields = Fields({name: value[name] for name in OWN if name in value}, f"{where}.")
    turn: dict[str, Any] = {name: field for name, field in value.items() if name not in OWN}
    turn["content"] = with_images(fields.take("content"), fields, sees)
    if name := fields.text("tool_name", ""):
        turn["name"] = name
    return turn


def with_images(content: object, fields: Fields, sees: bool) -> object:
    """A turn's content in OpenAI's form; Ollama's pictures, in base64 without a type, come before the text.

    `sees`: whether the target reads pictures; else there may be none.
    """
    images = fields.take("images")
    if images is None:
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
