"""The commands of a conversation: lines that begin with a slash."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_client.terminal.chat_view import View
from opensled.core.answer import Stats, speed
from opensled.core.errors import UsageError
from opensled.core.files import user_path, why_not_written
from opensled.core.images import MAX_IMAGES, Image, TurnImage, image_file
from opensled.core.messages import ChatMessage
from opensled.core.printable import digits
from opensled.drafting.status import DraftStatus


@dataclass(frozen=True)
class ChatTurn:
    """A question and its answer."""

    question: str
    answer: str
    images: tuple[Image, ...] = ()  # that the question was about
    stopped: bool = False  # by Ctrl-C, before the target had finished
    local: bool = False  # has text that no target has verified


@dataclass
class Conversation:
    """Exchanges after a system message ("" = none)."""

    system: str = ""
    exchanges: list[ChatTurn] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)  # that the next question is about

    def prompt(self, question: str) -> tuple[ChatMessage, ...]:
        """The whole conversation with `question` as its last message."""
        messages = [ChatMessage("system", self.system)] if self.system else []
        for past in self.exchanges:
            messages += [_question_message(past.question, past.images), ChatMessage("assistant", past.answer)]
        return (*messages, _question_message(question, self.images))

    def save(self, path: Path, model: str) -> None:
        """Write OpenAI chat messages into a new file that only its owner can read; raises UsageError."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; name another file") from error
        text = json.dumps({"model": model, "messages": self._messages()}, indent=2, ensure_ascii=False)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            path.unlink()
            why = why_not_written(path, error, len(text))
            raise UsageError(f"{path} cannot be written: {why}, or name another file") from error

    def _messages(self) -> list[dict[str, Any]]:
        """An answer is marked if Ctrl-C stopped it or if not all of it is the target's."""
        shown: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        for past in self.exchanges:
            marks = {name: True for name in ("stopped", "local") if getattr(past, name)}
            about = {"images": [image.digest.hex() for image in past.images]} if past.images else {}
            shown.append({"role": "user", "content": past.question, **about})
            shown.append({"role": "assistant", "content": past.answer, **marks})
        return shown


def _question_message(question: str, images: Sequence[Image]) -> ChatMessage:
    """A question behind its pictures."""
    return ChatMessage("user", question, images=tuple([TurnImage(0, image) for image in images]))


@dataclass
class Desk:
    """The state that the commands work on."""

    model: str  # name of the target
    view: View
    conversation: Conversation
    status: Callable[[], DraftStatus]  # how the device drafts now
    sees: bool = False  # whether the target reads pictures
    finished: list[Stats] = field(default_factory=list)  # the statistics of each finished answer
    leaving: bool = False


def is_command(text: str) -> bool:
    """Whether `text` is meant for `obey`. A slash may also begin a pasted text, such as a path and what follows it."""
    return text.startswith("/") and ("\n" not in text or text[1:].partition(" ")[0] in COMMANDS)


def obey(line: str, desk: Desk) -> None:
    """Run "/name argument"; raises UsageError for an unknown name."""
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        raise UsageError(f"no command /{name}; /help lists them, and // begins a text with a slash")
    COMMANDS[name].work(desk, argument.strip())


def _help(desk: Desk, argument: str) -> None:
    desk.view.pairs({item.usage: item.summary for item in COMMANDS.values()} | TYPING)


def _reset(desk: Desk, argument: str) -> None:
    desk.conversation.exchanges.clear()
    desk.view.note("the conversation starts again")


def _undo(desk: Desk, argument: str) -> None:
    if not desk.conversation.exchanges:
        raise UsageError("there is no question to take back")
    desk.view.note(f"taken back: {desk.conversation.exchanges.pop().question}")


def _system(desk: Desk, argument: str) -> None:
    desk.conversation.system = argument
    desk.view.note("the system message is set" if argument else "there is no system message now")


def _image(desk: Desk, argument: str) -> None:
    if not desk.sees:
        raise UsageError(f"{desk.model} reads text only, no pictures")
    if not argument:
        raise UsageError("write /image FILE")
    if len(desk.conversation.images) >= MAX_IMAGES:
        raise UsageError(f"a question may be about at most {MAX_IMAGES} pictures")
    desk.conversation.images.append(image_file(argument))
    desk.view.note(f"the next question is about {argument}")


def _stats(desk: Desk, argument: str) -> None:
    tokens, drafted, accepted = (
        sum(getattr(stats, name) for stats in desk.finished)
        for name in ("completion_tokens", "drafted", "accepted")
    )
    rate = f", {digits(found)} tokens/s" if (found := speed(desk.finished)) else ""
    share = f", {accepted} of {drafted} draft tokens accepted ({accepted / drafted:.0%})" if drafted else ""
    desk.view.note(
        f"{len(desk.finished)} finished answer{'s' * (len(desk.finished) != 1)}, {tokens} tokens{rate}{share}"
    )


def _status(desk: Desk, argument: str) -> None:
    status = desk.status()
    desk.view.note(f"{status.words}; gain: {status.gain_words}")


def _save(desk: Desk, argument: str) -> None:
    if not argument:
        raise UsageError("write /save FILE")
    path = user_path(argument)
    desk.conversation.save(path, desk.model)
    desk.view.note(f"saved to {path}")


def _exit(desk: Desk, argument: str) -> None:
    desk.leaving = True


@dataclass(frozen=True)
class Command:
    """One command; `work` gets the text after its name."""

    usage: str
    summary: str
    work: Callable[[Desk, str], None]


TYPING = {
    '"""': "begins and ends a message of several lines; pasted lines are one message without it",
    "//": "begins a question with a slash",
}
COMMANDS = {
    "help": Command("/help", "this list", _help),
    "reset": Command("/reset", "forget the conversation, but not the system message", _reset),
    "undo": Command("/undo", "take back the last question and its answer", _undo),
    "system": Command("/system [TEXT]", "set the system message; without TEXT remove it", _system),
    "image": Command("/image FILE", "show the target a picture with the next question", _image),
    "stats": Command("/stats", "tokens, speed and accepted drafts so far", _stats),
    "status": Command("/status", "how this device drafts now, and why", _status),
    "save": Command("/save FILE", "write the conversation into a new file, as JSON", _save),
    "exit": Command("/exit", "leave, as Ctrl-D does", _exit),
}
