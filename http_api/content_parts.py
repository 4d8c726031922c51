"""The content of a turn, from JSON: texts, pictures, documents, thoughts, and what other services did.

Every API reads by it, in the spelling of any. What cannot be read is refused in what the user has just said. Anywhere
else a line of text takes its place, for no user can take it out of a history.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from http_api.effects import is_nothing
from http_api.fields import Fields, fields_of, require_text
from http_api.left_out import leave_out
from http_api.part_files import document_text, find_picture, words_of
from opensled.core.errors import InvalidRequest, RequestError, Unsupported
from opensled.core.images import MAX_PROMPT_IMAGE_BYTES, Image, ImageFacts, TurnImage
from opensled.core.messages import ChatMessage, Prompt, is_chat

TEXTS = ("text", "input_text", "output_text", "refusal")  # types of parts; a refusal is what the model said
# Types of parts with thoughts of earlier answers
THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text")
PICTURES = ("image_url", "input_image", "image", "images", "computer_screenshot", "image_generation_call")
DOCUMENTS = ("document", "file", "input_file", "search_result")
# Of a service's own working: neither said nor found.
SILENT = (
    "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
    "fallback",
)  # fmt: skip
MAX_NESTED = 4  # lists around a part: of turns, parts, results and documents
NO_PICTURES = "this model reads no pictures: leave it out, describe it in words, or ask a model that sees"
NO_SOUND = "nothing here hears or watches: leave it out, or send its words as text"
# A type of part, or a field of a turn, that is refused -> the next step
REMEDIES = {
    **dict.fromkeys(PICTURES, NO_PICTURES),
    "image_file": "no files are stored here: send the picture itself",
    **dict.fromkeys(("audio", "input_audio", "video", "video_url", "input_video"), NO_SOUND),
    "tool_calls": "only a turn of the assistant has calls",
    "function_call": "only a turn of the assistant has calls",
    "container_upload": "no container runs here: send the text of the file in a text part",
    "item_reference": "it names an item that OpenAI stores, and nothing is stored here: send the item itself",
}
REMEDY = "nothing here reads it: send what it says as text"
UNSEEN = "[picture omitted: it cannot be read here]\n"
NO_ROOM = "[picture omitted: this model takes no more of them at once]\n"
# Fields as of HTTP by which clients account for a request, and which change with each: not for the model, and nothing
# behind them would be found in a cache. Of pairs that end in semicolons, what follows is kept.
ACCOUNTING = re.compile(
    r"\s*(x-[a-z0-9-]{0,40}?(?:billing|attribution|accounting|telemetry|(?:request|trace|session)-?id)[a-z0-9-]{0,40}):"
    r"(?:(?:[ \t]*[\w.-]+=[^;\n]*;)+|[^\n]*(?:\n|$))\s*",
    re.IGNORECASE | re.ASCII,
)


MAX_ACCOUNTS = 8  # of them that are looked for


class Place(NamedTuple):
    """Where a content stands."""

    facts: ImageFacts | None = None  # of a target that sees
    role: str = "user"
    is_new: bool = False  # the user has just said it


@dataclass
class Said:
    """What a turn says, part by part."""

    place: Place
    images: list[TurnImage] = field(default_factory=list)
    thinks: list[str] = field(default_factory=list)  # of an earlier answer
    _texts: list[str] = field(default_factory=list)
    _length: int = 0  # characters of them
    _in_line: bool = False

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def thoughts(self) -> str:
        return "".join(self.thinks)

    @property
    def is_empty(self) -> bool:
        return not (self._length or self.images)

    def say(self, text: str) -> None:
        if text:
            self._add(f"\n{text}" if self._in_line and text[0] != "\n" else text)
            self._in_line = False

    def end_line(self) -> None:
        """What follows begins another one."""
        self._in_line = bool(self._texts) and not self._texts[-1].endswith("\n")

    def tell(self, words: str) -> None:
        """On a line of its own."""
        apart = bool(self._texts) and not self._texts[-1].endswith("\n")
        self._add(f"\n{words}" if apart else words)
        self.end_line()

    def _add(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def show(self, image: Image, where: str) -> None:
        """A picture behind what is said so far. Raises for `where`: one of what the user has just said too many."""
        facts = self.place.facts
        if facts is None:
            raise Unsupported(f"{where} is a picture: {NO_PICTURES}", where)
        if len(image.data) > facts.max_bytes:
            raise InvalidRequest(
                f"{where}: an image of {len(image.data)} bytes; this target takes at most {facts.max_bytes}",
                where,
            )
        if self.place.is_new and len(self.images) == facts.most:
            raise InvalidRequest(
                f"{where}: one image too many; this target takes at most {facts.most}", where
            )
        self.images.append(TurnImage(self._length, image))

    def turn(self, role: str, **more: Any) -> ChatMessage:
        return ChatMessage(role, self.text, images=tuple(self.images), **more)


def newest(turns: Sequence[object]) -> int:
    """The index of what the user has just said; -1 = the last word is an answer's or a tool's."""
    for index in range(len(turns) - 1, -1, -1):
        turn = turns[index]
        role = turn.get("role") if isinstance(turn, dict) else None
        if role not in ("system", "developer"):
            return -1 if role in ("assistant", "tool", "function") else index
    return -1


def read_content(value: Any, where: str, place: Place = Place()) -> Said:
    """A string, or a list of parts; None is an empty one. Raises InvalidRequest or Unsupported with the path."""
    said = Said(place)
    read_into(said, value, where)
    return said


def read_into(said: Said, value: Any, where: str) -> None:
    """The same, behind what is said already."""
    if said.place.role == "tool":
        value = _told(value)
    for kind, fields in parts_of(value, where):
        read_part(said, kind, fields)


def _told(value: Any) -> Any:
    """A tool's result as a text or a list of parts: another one is told as JSON, and one part is a list of it."""
    if isinstance(value, dict) and "type" in value and _is_part(value):
        return [value]
    if value is None or value == {} or isinstance(value, str):
        return value
    is_parts = isinstance(value, list) and all(map(_is_part, value))
    return value if is_parts else json.dumps(value, ensure_ascii=False)


def _is_part(value: object) -> bool:
    """Whether it can be read as one; a tool's own JSON has `type` and `text` too."""
    if not isinstance(value, dict):
        return value is None or isinstance(value, str)
    kind = value.get("type")
    name = "refusal" if kind == "refusal" else "text"
    if kind in TEXTS or (is_nothing(kind) and name in value):
        return name in value and (is_nothing(value[name]) or isinstance(value[name], str))
    return is_nothing(kind) or isinstance(kind, str)


def parts_of(value: Any, where: str) -> Iterator[tuple[str, Fields]]:
    """Each part's type, and its other fields; a string is one text."""
    if not isinstance(value, list):
        if not is_nothing(value):
            yield "text", Fields({"text": require_text(value, where)}, f"{where}.")
        return
    for index, part in enumerate(value):
        path = f"{where}[{index}]"
        if isinstance(part, str):
            yield "text", Fields({"text": require_text(part, path)}, f"{path}.")
        elif not is_nothing(part):
            fields = fields_of(part, path)
            kind = fields.text("type", "") or ("text" if "text" in part else "")
            name = "refusal" if kind == "refusal" else "text"
            if kind in TEXTS and name not in part:
                require_text(None, fields.path(name))
            yield kind, fields


def read_part(said: Said, kind: str, fields: Fields) -> None:
    """One of them. Only its place decides what becomes of a part that cannot be read."""
    place = said.place
    if kind in TEXTS:
        said.say(_text(fields, "refusal" if kind == "refusal" else "text", place))
    elif kind in THOUGHTS and place.role == "assistant":
        said.thinks.append(_thought(fields))
    else:
        read = _show if kind in PICTURES else _quote if kind in DOCUMENTS else _tell
        try:
            read(said, kind, fields)
        except RequestError:
            if place.is_new:
                raise
            _omit(said, kind, fields)
    fields.leave_rest()


def read_beside(said: Said, fields: Fields, *names: str) -> None:
    """What a turn has beside its content in the fields `names`: each a part of that type, or a list of them."""
    for name in names:
        if (value := fields.take(name)) is None:
            continue
        several = isinstance(value, list)
        for index, inner in enumerate(value if several else [value]):
            where = fields.path(f"{name}[{index}]" if several else name)
            read_part(said, name, Fields({"": inner}, where))


def _text(fields: Fields, name: str, place: Place) -> str:
    text = fields.text(name, "")
    for _ in range(MAX_ACCOUNTS if place.role == "system" else 0):
        if (line := ACCOUNTING.match(text)) is None:
            break
        leave_out(f"{_anywhere(fields.path('').rstrip('.'))} ({line[1].lower()})")
        text = text[line.end() :]
    return text


def _thought(fields: Fields) -> str:
    """The text of a part with thoughts; "" = it has none that can be read."""
    texts = [fields.take(name) for name in ("thinking", "reasoning", "text")]
    found = next((text for text in texts if isinstance(text, str)), "")
    return require_text(found, fields.path("text"))


def _show(said: Said, kind: str, fields: Fields) -> None:
    if said.place.facts is None:
        raise _refusal(kind, fields)
    said.show(*find_picture(dict(fields.rest()), fields.path))


def _quote(said: Said, kind: str, fields: Fields) -> None:
    """A document, if it is text."""
    title, content, where = document_text(kind, fields)
    if content is not None and fields.path("").count("[") <= MAX_NESTED:
        said.tell(f"[{kind}: {title}]" if title else f"[{kind}]")
        read_into(said, content, where)
        said.end_line()
    elif said.place.is_new:
        raise _refusal(kind, fields)
    else:
        _omit(said, kind, fields, f" {title}" if title else "")


def _tell(said: Said, kind: str, fields: Fields) -> None:
    """What another service did, or what is not known yet: its words."""
    if said.place.is_new:
        raise _refusal(kind, fields)
    words = "" if kind in SILENT else words_of(dict(fields.rest()))
    if words:
        said.tell(f"[{_shown(kind)}: {words}]" if kind else words)
    else:
        _omit(said, kind, fields)


def _omit(said: Said, kind: str, fields: Fields, title: str = "") -> None:
    """A line in its place, and its name in the header of the answer."""
    leave_out(f"{_anywhere(_path(fields))}={kind}" if _is_typed(fields) else _anywhere(_path(fields)))
    dict(fields.rest())
    if kind not in SILENT:
        known = "picture" if kind in PICTURES else _shown(kind) or "part"
        blind = kind in PICTURES and said.place.facts is None
        said.tell(
            f"[{known}{title} omitted: {'this model reads text' if blind else 'it cannot be read here'}]"
        )


def _refusal(kind: str, fields: Fields) -> Unsupported:
    """Names a file by its kind, as Anthropic does: Claude Code takes `content[N].image` out of its history then."""
    path = named = _path(fields)
    if _is_typed(fields):
        is_file = kind in PICTURES or kind in DOCUMENTS
        path = fields.path(kind) if is_file else path
        named = path if is_file else f"{path} is {kind[:80]!r}"
    return Unsupported(f"{named}: {REMEDIES.get(kind, REMEDY)}", path)


def _is_typed(fields: Fields) -> bool:
    """Whether it has a type of its own, not the name of its field."""
    return fields.path("").endswith(".")


def _path(fields: Fields) -> str:
    return fields.path("type" if _is_typed(fields) else "")


def _shown(kind: str) -> str:
    return re.sub(r"[^\w.-]", "?", kind, flags=re.ASCII)[:80]


def _anywhere(path: str) -> str:
    return re.sub(r"\[\d+\]", "[]", path)


def place_images(turns: Sequence[ChatMessage], facts: ImageFacts | None) -> list[ChatMessage]:
    """The same turns with pictures of users alone, and no more than the target takes: the latest.

    Those of others go to the user's turn behind them, where chat templates have places.
    """
    made, waiting = list[ChatMessage](), list[TurnImage]()
    for turn in [*turns, None]:
        last = made[-1].role if made else ""
        if turn and turn.role == "user":
            turn, waiting = replace(turn, images=(*waiting, *turn.images)) if waiting else turn, []
        elif waiting and not (turn and (turn.role == "tool" or turn.role == last == "assistant")):
            made.append(ChatMessage("user", "", images=tuple(waiting)))
            waiting = []
        if turn and turn.role != "user" and turn.images:
            waiting += [TurnImage(0, placed.image) for placed in turn.images]
            turn = replace(turn, images=())
        made += [turn] if turn else []
    return _latest(made, facts.most) if facts else made


def _latest(turns: list[ChatMessage], most: int) -> list[ChatMessage]:
    bytes_left = MAX_PROMPT_IMAGE_BYTES
    for index in range(len(turns) - 1, -1, -1):
        kept, images = 0, turns[index].images
        for placed in reversed(images):
            bytes_left -= len(placed.image.data)
            most = most - 1 if bytes_left >= 0 else -1
            if most < 0:
                break
            kept += 1
        turns[index] = _without(turns[index], len(images) - kept, NO_ROOM)
    return turns


def without_earlier_images(prompt: Prompt) -> Prompt:
    """The same chat with a line in place of each picture that the user has not just shown."""
    if not is_chat(prompt):
        return prompt
    own = -1 if [turn.role for turn in prompt[-2:-1]] == ["tool"] else len(prompt) - 1
    return tuple(
        turn if index == own else _without(turn, len(turn.images), UNSEEN)
        for index, turn in enumerate(prompt)
    )


def _without(turn: ChatMessage, count: int, line: str) -> ChatMessage:
    """With a line in place of each of its first `count` pictures."""
    if not count:
        return turn
    content = turn.content
    for placed in reversed(turn.images[:count]):
        content = content[: placed.offset] + line + content[placed.offset :]
    moved = count * len(line)
    images = tuple(TurnImage(placed.offset + moved, placed.image) for placed in turn.images[count:])
    return replace(turn, content=content, images=images)
