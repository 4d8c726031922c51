"""Files in the parts of a content: the picture or the text that one holds, and the words of what is no file."""

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from http_api.fields import Fields, fields_of, require_text
from opensled.core.errors import Unsupported
from opensled.core.files import decode_text
from opensled.core.images import URL_SAFE, Image, image_url

# Where the APIs and MCP have a picture; "" = the part is the picture itself.
PICTURE_FIELDS = ("", "image_url", "source", "url", "data", "base64", "image", "result")
MAX_WORDS = 16_000  # characters of one part; chosen: as much as coding agents show of one file
MAX_WORD = 300  # longer ones are encrypted or encoded; chosen: a URL is shorter
# Fields without words for a model.
WORDLESS = re.compile(
    r"(.*_)?(id|type|blob|status|role|signature|caller|token|format|detail|index|mime_?type|environment)"
    r"|encrypted_.*|b64_json|cache_control|annotations|is_error",
    re.IGNORECASE,
)


def find_picture(part: Mapping[str, Any], path: Callable[[str], str]) -> tuple[Image, str]:
    """The picture in a part, a data URL or base64, and its path. Raises InvalidRequest or Unsupported."""
    value: Any = part
    where = path("").rstrip(".")
    for _ in range(3):  # objects around a picture, as source and output are
        if not isinstance(value, dict):
            break
        name = next((name for name in PICTURE_FIELDS if value.get(name)), None)
        if name is None:
            raise Unsupported(
                f"{where} has no picture: no files are stored here, send the picture itself", where
            )
        # Anthropic's, as its own service names it
        where = ".".join(filter(None, (where, "image.source" if name == "source" else name)))
        value = value[name]
    text = require_text(value, where)
    url = text if ":" in text[:100] else f"data:;base64,{text}"
    return image_url(url, where), where


def document_text(kind: str, fields: Fields) -> tuple[str, Any, str]:
    """Of a document its title, its content (a text or a list of parts), and the path of that; None = no text."""
    if kind == "file" and isinstance(inner := fields.raw("file"), dict):
        fields = fields_of(inner, fields.path("file"))
    source = fields.raw("source")
    named = [fields.raw(name) for name in ("title", "filename", "name", "context")]
    title = " ".join(name for name in (*named, source) if isinstance(name, str))[:MAX_WORD]
    if isinstance(source, dict):
        fields = fields_of(source, fields.path("source"))
    plain = fields.raw("type") == "text"
    for name in ("content", "data", "file_data", "base64", "text"):
        if value := fields.raw(name):
            whole = plain or name in ("content", "text") or not isinstance(value, str)
            return title, value if whole else _text_of(value), fields.path(name)
    return title, None, ""


def _text_of(data: str) -> str | None:
    """The text in a file in base64 or a data URL; None = it is another kind of file."""
    head, comma, body = data.partition(",")
    encoded = not comma or ";base64" in head.lower()
    try:
        text = "".join((body if comma else data).split()).rstrip("=").translate(URL_SAFE)
        raw = (
            base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
            if encoded
            else unquote_to_bytes(body)
        )
        read = decode_text(raw)
    except (binascii.Error, ValueError):
        return None
    return None if "\0" in read or read.startswith(("%PDF-", "{\\rtf")) else read


def words_of(value: Any) -> str:
    """The words and numbers in a JSON value of unknown form: without ids, types, and what is encrypted or encoded."""
    text = " ".join(_words(value)).encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}..."


def _words(value: Any) -> Iterator[str]:
    waiting = [("", value)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, (bool, int, float)) and math.isfinite(value):
            yield f"{key} {json.dumps(value)}".strip()
        elif isinstance(value, str):
            if value.strip() and (len(value) <= MAX_WORD or re.search(r"\s", value.strip())):
                yield value.strip()
        elif isinstance(value, dict):
            encoded = () if value.get("type") == "text" else ("data", "base64")
            # toolCallId has no mark between its words
            snake = {
                name: re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name) for name in value if name not in encoded
            }
            named = [name for name, words in snake.items() if not WORDLESS.fullmatch(words)]
            waiting += [(name, value[name]) for name in reversed(named)]
        elif isinstance(value, list):
            waiting += [(key, each) for each in reversed(value)]
