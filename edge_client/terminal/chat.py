"""`opensled chat`: a conversation in the terminal, or messages through a pipe."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Coroutine, Iterable
from contextlib import aclosing, nullcontext
from types import FrameType
from typing import Any, TypeVar

from edge_client.device.device import Device, connect
from edge_client.device.prompt_config import ChatConfig
from edge_client.link.located import locate_server
from edge_client.terminal.chat_commands import COMMANDS, ChatTurn, Conversation, Desk, is_command, obey
from edge_client.terminal.chat_input import History, Terminal, history_path, piped_messages
from edge_client.terminal.chat_view import Answer, Notes, View
from edge_client.terminal.greeting import greeting
from edge_client.terminal.printed_answer import Piece, Thoughts
from opensled.cli.colour import input_comes, palette, require_text
from opensled.core.answer import WARNINGS, Chunk, Origin, Task, first_unverified
from opensled.core.errors import InvalidRequest, OpenSledError, Unsupported, UsageError
from opensled.process import logs
from opensled.process.ending import waking
from opensled.text.origins import colour_of
from opensled.text.painter import Painter

T = TypeVar("T")
ADVICE = "/reset forgets the conversation, /undo its last question"


def chat(config: ChatConfig) -> int:
    """Questions and answers until Ctrl-D, /exit or the end of the input. In a pipe the first error ends the chat."""
    view = View(palette(config.color, sys.stdout), chatty=sys.stdin.isatty() and sys.stdout.isatty())
    if config.show_drafts and not view.palette.on:
        raise UsageError("--show-drafts needs colours, and they are off here: add --color always")
    require_text(config.system, "--system")
    config = locate_server(config)
    with Runner() as runner, logs.redirect(Notes(view)) if view.chatty else nullcontext():
        device = runner.run(connect(config, shows_vetted=config.show_vetted))
        try:
            Chat(config, device, view, runner).talk(_messages(config, view))
        finally:
            runner.run(device.close())
    return 0


def _messages(config: ChatConfig, view: View) -> Iterable[str]:
    if not view.chatty:
        if not input_comes():
            logs.tell("waiting for questions on standard input, one a line")
        return piped_messages()
    history = History(history_path()) if config.history else None
    return Terminal(view.palette("> ", "bold"), [f"/{name}" for name in COMMANDS], history).messages()


class Runner:
    """Runs coroutines one after another on the same loop; Ctrl-C cancels the one that runs.

    Between them no loop runs, so that readline handles Ctrl-C and editing at the prompt. (Python 3.10 has no
    asyncio.Runner.)
    """

    def __enter__(self) -> Runner:
        self._loop = asyncio.new_event_loop()
        return self

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; KeyboardInterrupt when Ctrl-C has cancelled it, or came as it ended."""
        task, interrupted = self._loop.create_task(work), list[int]()

        # Not `add_signal_handler`: what came during the last step of `work` would wait for a loop that has stopped.
        def interrupt(number: int, frame: FrameType | None) -> None:
            interrupted.append(number)
            self._loop.call_soon_threadsafe(task.cancel)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            with waking(self._loop):
                result = self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            signal.signal(signal.SIGINT, before)
        # What ends at that moment is not cancelled any more; nor is `wait_for` of Python 3.11, which has a result.
        if interrupted:
            raise KeyboardInterrupt
        return result

    def __exit__(self, *exception: object) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


class Chat:
    """Questions and their answers, one at a time."""

    def __init__(self, config: ChatConfig, device: Device, view: View, runner: Runner) -> None:
        self._config, self._device, self._view, self._runner = config, device, view, runner
        self._conversation = Conversation(config.system)
        info = device.info
        self._desk = Desk(
            info.model_id, view, self._conversation, lambda: device.status, sees=info.images is not None
        )

    def talk(self, messages: Iterable[str]) -> None:
        """Answer every message; raises Unsupported for a target without a chat template."""
        info, view = self._device.info, self._view
        if not info.has_chat_template:
            raise Unsupported(
                f"{info.model_id} has no chat template; to continue texts: opensled generate --raw"
            )
        view.note("\n".join(greeting(info, self._config.server, self._device.drafter_name)))
        if self._config.show_drafts:
            view.legend(self._device.origins)
        for message in messages:
            try:
                self._take(message)
            except OpenSledError as error:
                if not view.chatty:
                    raise
                view.warn(f"error: {error}", "red")
            if self._desk.leaving:
                return

    def _take(self, message: str) -> None:
        """A command, or a question; `//` begins a question with a slash. A question of several lines keeps its form."""
        text = require_text(message, "that line").strip()
        if is_command(text) and not text.startswith("//"):
            obey(text, self._desk)
        elif text:
            question = message.strip("\n") if "\n" in text else text
            self._ask(question.removeprefix("/") if text.startswith("//") else question)

    def _ask(self, question: str) -> None:
        """Answer one question. It joins the conversation if it has an answer and no error ended it."""
        answer, started = Answer(), time.monotonic()
        try:
            self._runner.run(self._answer(question, answer))
        except KeyboardInterrupt:
            if not self._view.chatty:
                raise
            self._view.break_line()  # the terminal has echoed ^C
        except InvalidRequest as error:
            advice = f"; {ADVICE}" if error.field == "prompt" and self._conversation.exchanges else ""
            raise InvalidRequest(f"{error}{advice}", error.field) from error
        finally:
            self._view.end_line()
        if answer.text:
            self._conversation.exchanges.append(
                ChatTurn(
                    question,
                    answer.text,
                    tuple(self._conversation.images),
                    stopped=not answer.finish_reason,
                    local=first_unverified(answer.origins) is not None,
                )
            )
            self._conversation.images.clear()
        if answer.stats:
            self._desk.finished.append(answer.stats)
        self._view.statistics(answer, time.monotonic() - started)
        self._explain_length(answer)
        self._view.note("\n")

    async def _answer(self, question: str, answer: Answer) -> None:
        task = Task(self._conversation.prompt(question), self._config.params())
        painter = Painter(self._device.tokenizer) if self._config.show_drafts else None
        thoughts = Thoughts(self._view.palette)
        async with aclosing(self._device.answer(task)) as chunks:
            async for chunk in chunks:
                author = first_unverified(chunk.origins)
                if author and author not in answer.origins:
                    self._view.warn(WARNINGS[author])
                answer.add(chunk)
                thought, said = _paint(chunk, painter)
                for text, colour in thoughts.apart(thought if self._view.chatty else [], said):
                    self._view.text(text, colour)
                self._view.guess(chunk.provisional, chunk.status)

    def _explain_length(self, answer: Answer) -> None:
        stats = answer.stats
        if stats is None or answer.finish_reason != "length":
            return
        context = self._device.info.limits.context_length
        if stats.prompt_tokens + stats.completion_tokens >= context:
            self._view.warn(f"the context of {context} tokens is full: {ADVICE}")
        else:
            self._view.note(f"cut after {stats.completion_tokens} tokens; --max-tokens allows more")


def _paint(chunk: Chunk, painter: Painter | None) -> tuple[list[Piece], list[Piece]]:
    """Thoughts and text with their colours: by origin with a `painter`, else only for what no target has verified."""
    if painter is None:
        author = first_unverified(chunk.origins)
        colour = colour_of(author) if author else ""
        return [(chunk.thoughts, colour)], [(chunk.text, colour)]
    thoughts, said = painter.paint(chunk)
    return _colour(thoughts), _colour(said)


def _colour(pieces: list[tuple[str, Origin]]) -> list[Piece]:
    return [(text, colour_of(origin)) for text, origin in pieces]
