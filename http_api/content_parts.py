"""The content of a turn, from JSON: a text, or a list of texts and pictures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from http_api.effects import is_nothing
from http_api.fields import Fields, fields_of, require_text
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.images import ImageFacts, TurnImage, image_url
from opensled.core.messages import ChatMessage

DETAILS = ("auto", "low", "high")  # a target sees each picture in one resolution, so they mean the same
TEXTS = ("text", "input_text", "output_text", "refusal")  # types of parts; a refusal is what the model said
THOUGHTS = (
    "thinking",
    "redacted_thinking",
    "reasoning",
    "reasoning_text",
    "summary_text",
)  # of earlier answers


class TurnContent(NamedTuple):
    """What a turn says."""

    text: str
    images: tuple[TurnImage, ...] = ()
    thoughts: str = ""  # of an earlier answer


def read_content(value: Any, where: str, pictures: str = "", thoughts: bool = False) -> TurnContent:
    """A string, or a list of parts: texts, and pictures of the type `pictures`, if there are any. None is an empty one.

    `thoughts`: whether there may be parts with an earlier answer's thoughts. Raises InvalidRequest or Unsupported with
    the path of the part.
    """
    if is_nothing(value):
        return TurnContent("")
    if not isinstance(value, list):
        return TurnContent(require_text(value, where))
    text, thought, images = "", "", list[TurnImage]()
    for index, part in enumerate(value):
        if is_nothing(part):
            continue
        if isinstance(part, str):
            text += require_text(part, f"{where}[{index}]")
            continue
        fields = fields_of(part, f"{where}[{index}]")
        kind = fields.take("type")
        if pictures and kind == pictures:
            images.append(TurnImage(len(text), image_url(*_url(fields))))
        elif kind in TEXTS:
            name = "refusal" if kind == "refusal" else "text"
            text += read_text(part, fields, name)
        elif thoughts and kind in THOUGHTS:
            thought += _thought(fields)
        else:
            known = " or ".join(["a text", *([pictures] if pictures else [])])
            raise Unsupported(
                f"{fields.path('type')} must be {known}: this model reads nothing else", fields.path("type")
            )
        fields.leave_rest()
    return TurnContent(text, tuple(images), thought)


def _thought(fields: Fields) -> str:
    """The text of a part with thoughts; "" = it has none that can be read."""
    texts = [fields.take(name) for name in ("thinking", "reasoning", "text")]
    found = next((text for text in texts if isinstance(text, str)), "")
    return require_text(found, fields.path("text"))


def read_text(value: Any, fields: Fields, name: str) -> str:
    """The text in the field `name` of the object `value`: it may be empty, but not be missing, or have another name."""
    return fields.text(name, "") if name in value else require_text(None, fields.path(name))


def _url(fields: Fields) -> tuple[str, str]:
    """The URL of a picture, a text or an object around it, and its path."""
    fields.only("detail", *DETAILS)
    fields.only("file_id", "")
    value, where = fields.take("image_url"), fields.path("image_url")
    if not isinstance(value, dict):
        return require_text(value, where), where
    inner = fields_of(value, where)
    inner.only("detail", *DETAILS)
    url, where = require_text(inner.take("url"), inner.path("url")), inner.path("url")
    inner.finish()
    return url, where


def require_images(turns: Sequence[ChatMessage], facts: ImageFacts | None, name: str) -> None:
    """Raises InvalidRequest for `name`, the field of the turns, if the target takes no such pictures."""
    images = [placed.image for turn in turns for placed in turn.images]
    if facts is None:
        assert not images, "read for a target that sees"
        return
    if len(images) > facts.most:
        raise InvalidRequest(f"{len(images)} images; this target takes at most {facts.most}", name)
    largest = max([len(image.data) for image in images], default=0)
    if largest > facts.max_bytes:
        raise InvalidRequest(
            f"an image of {largest} bytes; this target takes at most {facts.max_bytes}", name
        )
