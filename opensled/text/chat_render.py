"""Renders chat templates, which come from strangers: in jinja's sandbox, in a fork with limits of time and memory.

The sandbox keeps a template from running code. It does not keep one from loops in loops, or from `'a' * 10**10`, which
jinja computes already when it compiles the template.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from opensled.core.errors import EngineError, UnsupportedModel
from opensled.process.fork_frames import ForkLimits
from opensled.process.fork_server import ForkServer, OverLimit
from opensled.process.logs import announce
from opensled.text.chat_contents import Contents, Turn, learn_contents

# Of one chat. Chosen: the templates of real models take milliseconds and a few times the memory of the chat. In the
# sandbox nothing that a template reaches can be changed, so one fork renders many chats.
LIMITS = ForkLimits(seconds=2.0, memory=256 << 20, limits_setup=True, questions=1000)
HANDLER = "opensled.text.chat_render:answering"
NO_CHAT = b"{}"  # asks for the template's variables
SHORT_CHAT = [{"role": "user", "content": "Hi"}]


class TemplateRefused(Exception):
    """The template raised an error; the text is the error's."""


class ChatRenderer:
    """One chat template, compiled in a process of its own; several threads may use it at once."""

    def __init__(
        self,
        template: str,
        special: Mapping[str, Any],
        undefined: bool = False,
        picture: str = "",
        placeholder: str = "",
    ) -> None:
        """`special`: the special tokens that the template may name.

        `undefined`: absent tools and documents are undefined, as in llama.cpp, not None, as in transformers. Where the
        template fails with the one it gets the other. `picture`, `placeholder`: see `learn_contents`.
        """
        self._picture, self._placeholder = picture, placeholder
        about = {"template": template, "special": dict(special), "undefined": undefined}
        setup = json.dumps(about).encode()
        self._forks = ForkServer(HANDLER, setup, LIMITS)

    def start(self) -> None:
        """Start its process and ask what it reads, which on a busy or small machine takes longer than many chats.
        Raises OverLimit, and EngineError if the template cannot be compiled."""
        self._forks.start()
        _ = self._form

    def require(self, origin: object) -> tuple[str, ...]:
        """Names that the template reads and that it is not given by itself, sorted.

        Raises UnsupportedModel, naming `origin`, if the template cannot be compiled or renders no short chat. Warns of
        one that shows nothing of what a user says.
        """
        try:
            self.start()
            with suppress(TemplateRefused):  # it wants another chat
                self.render(SHORT_CHAT, None)
            if not self._form.is_heard:
                announce(
                    f"the chat template of {origin} shows nothing of what a user says in short chats; if answers are "
                    "of something else, put another chat_template.jinja beside its tokenizer.json"
                )
            return tuple(json.loads(self._forks.ask(NO_CHAT)))
        except EngineError as error:
            raise UnsupportedModel(
                f"the chat template of {origin} cannot be compiled: {error}; put another chat_template.jinja "
                "beside its tokenizer.json"
            ) from error
        except OverLimit as error:
            raise UnsupportedModel(
                f"the chat template of {origin} takes more than {error} for a short chat; put another "
                "chat_template.jinja beside its tokenizer.json"
            ) from error

    def render(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a chat, whose contents are texts, up to the start of the assistant's next turn.

        `variables`: further ones that the template may read.
        Raises TemplateRefused, OverLimit, EngineError, and Cancelled by `opensled.process.fork_server.STOP`.
        """
        return self._text({**(variables or {}), "messages": self._form.of(turns), "tools": tools})

    @cached_property
    def _form(self) -> Contents:
        """The form of contents that the template reads; one that takes too much is not asked again."""
        takes_too_much = False

        def render(turns: list[Turn]) -> str:
            nonlocal takes_too_much
            with suppress(TemplateRefused):
                try:
                    return "" if takes_too_much else self._text({"messages": turns, "tools": None})
                except OverLimit:
                    takes_too_much = True
            return ""

        return learn_contents(render, self._picture, self._placeholder)

    def _text(self, chat: Mapping[str, Any]) -> str:
        try:
            question = json.dumps(chat).encode()
        except RecursionError as error:
            raise TemplateRefused("they are nested too deeply") from error
        answer = json.loads(self._forks.ask(question))
        if "error" in answer:
            raise TemplateRefused(answer["error"])
        text: str = answer["text"]
        return text

    def close(self) -> None:
        """End its process."""
        self._forks.close()


def answering(setup: bytes) -> Callable[[bytes], bytes]:
    """What answers in a fork: the texts of chats by the template in `setup`, or, of no chat, what it reads."""
    from opensled.text import chat_sandbox

    fields = json.loads(setup)
    environment = chat_sandbox.environment()
    render = environment.from_string(fields["template"]).render

    def answer(question: bytes) -> bytes:
        asked = json.loads(question)
        if not asked:
            return json.dumps(chat_sandbox.variables(environment, fields["template"])).encode()
        errors = []
        for absent in _absent(asked, fields["undefined"]):
            try:
                text = render({**asked, **fields["special"], **absent, "add_generation_prompt": True})
                return json.dumps({"text": text}).encode()
            except MemoryError:
                raise
            except Exception as error:  # a template may raise any error
                errors.append(error)
            if isinstance(errors[0], chat_sandbox.Refusal):
                break
        return json.dumps({"error": str(errors[0])}).encode()

    return answer


def _absent(asked: dict[str, Any], undefined: bool) -> Iterator[dict[str, Any]]:
    """What stands for tools and documents that a chat is without; takes absent tools out of `asked`."""
    names = ["documents"]
    if not asked["tools"]:
        names.append("tools")
        del asked["tools"]
    ways: tuple[dict[str, Any], ...] = ({}, dict.fromkeys(names))
    yield from ways if undefined else reversed(ways)
