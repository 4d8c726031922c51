"""The turns of a chat from `system` and `messages`: texts, pictures, calls of tools and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from http_api.call_ids import with_ids
from http_api.effects import is_nothing
from http_api.fields import Fields, call_arguments, fields_of, require_text
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.images import Image, TurnImage, image_base64, image_url
from opensled.core.messages import ChatMessage, ToolCall

RESULT = "result"  # in place of a role: the content of a tool's result
FAILED = "Error: "  # before the result of a call that failed; chat templates have no other word for it

# A type of block that nothing here reads -> the next step
ELSEWHERE = {
    "image": "this model reads no pictures at this place: leave it out, or describe it in words",
    "document": "nothing here reads files: send the text of the document in a text block",
    "search_result": "send its text in a text block",
    "container_upload": "no container runs here: send the text of the file in a text block",
}


@dataclass
class Said:
    """What one message says, block by block."""

    sees: bool  # whether pictures are read
    texts: list[str] = field(default_factory=list)
    length: int = 0  # characters of them
    images: list[TurnImage] = field(default_factory=list)
    thoughts: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    results: list[ChatMessage] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.texts.append(text)
        self.length += len(text)

    def show(self, image: Image) -> None:
        """A picture behind what is said so far."""
        self.images.append(TurnImage(self.length, image))

    def turns(self, role: str) -> list[ChatMessage]:
        """The results of tools come first, since they answer the turn before; a message may hold nothing else."""
        if self.results and not self.length and not self.images:
            return self.results
        calls, images = tuple(self.calls), tuple(self.images)
        said = ChatMessage(role, "".join(self.texts), calls, images=images, reasoning=self.thoughts)
        return [*self.results, said]


def read_messages(fields: Fields, sees: bool = False) -> tuple[ChatMessage, ...]:
    """The fields `system` and `messages`; `sees`: whether the target reads pictures.

    Raises InvalidRequest or Unsupported with the path of the block.
    """
    system = _read(fields.take("system"), "system", "system", False)
    turns = system.turns("system") if system.length else []
    value = fields.take("messages")
    if not isinstance(value, list) or not value:
        raise InvalidRequest("messages must be a list with at least one message", "messages")
    for index, message in enumerate(value):
        turns += _turns(message, f"messages[{index}]", sees)
    if turns[-1].role == "assistant":
        raise InvalidRequest(
            "messages must end with a turn of the user: an answer cannot be prefilled; ask for its form in words, or "
            "by output_config.format",
            "messages",
        )
    return with_ids(turns)


def _turns(value: object, where: str, sees: bool) -> list[ChatMessage]:
    fields = fields_of(value, where)
    role = fields.text("role", "")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(f"{where}.role must be one of user, assistant, system", f"{where}.role")
    said = _read(fields.take("content"), f"{where}.content", role, sees and role == "user")
    fields.leave_rest()
    return said.turns(role)


def _read(value: object, where: str, role: str, sees: bool) -> Said:
    """A text, or a list of blocks; none is an empty text, as of an answer that ended at once."""
    said = Said(sees)
    for kind, fields in _blocks(value, where):
        reader = READERS[role].get(kind)
        if reader is None or (kind == "image" and not sees):
            known = ", ".join(name for name in READERS[role] if sees or name != "image")
            remedy = ELSEWHERE.get(kind, "no tool runs here: send what it found in a text block")
            path = fields.path("type")
            raise Unsupported(f"{path} must be one of {known}, not {kind[:80]!r}: {remedy}", path)
        reader(said, fields)
        fields.leave_rest()
    return said


def _blocks(value: object, where: str) -> Iterator[tuple[str, Fields]]:
    """Each block's type and other fields."""
    if value is None:
        return
    if isinstance(value, str):
        yield "text", Fields({"text": require_text(value, where)}, f"{where}.")
        return
    if not isinstance(value, list):
        raise InvalidRequest(f"{where} must be a string or a list of blocks", where)
    for index, block in enumerate(value):
        if is_nothing(block):
            continue
        fields = fields_of(block, f"{where}[{index}]")
        yield fields.text("type", "text"), fields


def _text(said: Said, fields: Fields) -> None:
    said.say(require_text(fields.raw("text"), fields.path("text")))


def _image(said: Said, fields: Fields) -> None:
    source = fields.inside("source")
    kind = source.text("type", "base64")
    if kind not in ("base64", "url"):
        raise Unsupported(
            f"{source.path('type')} must be base64: no files are stored here, send the picture itself",
            source.path("type"),
        )
    name, read = ("data", image_base64) if kind == "base64" else ("url", image_url)
    image = read(require_text(source.raw(name), source.path(name)), source.path(name))
    source.leave_rest()
    said.show(image)


def _call(said: Said, fields: Fields) -> None:
    call_id, name = fields.text("id", ""), require_text(fields.raw("name"), fields.path("name"))
    said.calls.append(ToolCall(call_id, name, call_arguments(fields.take("input"), fields.path("input"))))


def _result(said: Said, fields: Fields) -> None:
    """Its pictures go to the user's turn behind it, where chat templates have places for them."""
    call_id = fields.text("tool_use_id", "")
    told = _read(fields.take("content"), fields.path("content"), RESULT, said.sees)
    failed = fields.flag("is_error", False)
    said.results.append(
        ChatMessage("tool", (FAILED if failed else "") + "".join(told.texts), tool_call_id=call_id)
    )
    for placed in told.images:
        said.show(placed.image)


def _thought(said: Said, fields: Fields) -> None:
    """For templates that read the thoughts of earlier answers; encrypted ones say nothing here."""
    said.thoughts += fields.text("thinking", "")


READERS: dict[str, dict[str, Callable[[Said, Fields], None]]] = {
    "system": {"text": _text},
    "user": {"text": _text, "image": _image, "tool_result": _result},
    "assistant": {"text": _text, "tool_use": _call, "thinking": _thought, "redacted_thinking": _thought},
    RESULT: {"text": _text, "image": _image},
}
