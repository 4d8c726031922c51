"""The conversation so far, which goes to the model with the next question."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opensled.errors import UsageError
from opensled.messages import ChatMessage


@dataclass(frozen=True)
class ChatTurn:
    """A question and its answer."""

    question: str
    answer: str
    stopped: bool = False  # by Ctrl-C, before the target had finished
    local: bool = False  # has text that the draft model wrote alone, while no server could be reached


@dataclass
class Conversation:
    """Exchanges after a system message ("" = none)."""

    system: str = ""
    exchanges: list[ChatTurn] = field(default_factory=list)

    def prompt(self, question: str) -> tuple[ChatMessage, ...]:
        """The whole conversation with `question` as its last message."""
        messages = [ChatMessage("system", self.system)] if self.system else []
        for past in self.exchanges:
            messages += [ChatMessage("user", past.question), ChatMessage("assistant", past.answer)]
        return (*messages, ChatMessage("user", question))

    def save(self, path: Path, model: str) -> None:
        """Write OpenAI chat messages into a new file that only its owner can read; raises UsageError."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}; name another file") from error
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"model": model, "messages": self._messages()}, file, indent=2, ensure_ascii=False)
            file.write("\n")

    def _messages(self) -> list[dict[str, Any]]:
        """An answer is marked if Ctrl-C stopped it or if not all of it is the target's."""
        shown: list[dict[str, Any]] = [{"role": "system", "content": self.system}] if self.system else []
        for past in self.exchanges:
            marks = {name: True for name in ("stopped", "local") if getattr(past, name)}
            shown.append({"role": "user", "content": past.question})
            shown.append({"role": "assistant", "content": past.answer, **marks})
        return shown
