"""The input of a conversation: messages from a terminal or from a pipe."""

import contextlib
import json
import os
import re
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from opensled.core.errors import UsageError
from opensled.core.files import user_path
from opensled.core.printable import visible

KEPT_LINES = 1000


PASTE_GAP = 0.03  # seconds: what follows a line sooner was pasted with it
LARGEST_PASTE = 1 << 20  # bytes
QUOTES = '"""'  # around a message of several lines
DISCARD = "\x03"  # Ctrl-C as a key


def message(first: str, more: Callable[[], str]) -> str:
    """The message that begins with the line `first`: that line, or all up to the closing quotes.

    `more` reads the next line. A paste that begins with quotes and does not end with them is a message by itself.
    """
    if not first.startswith(QUOTES):
        return first
    text = first[len(QUOTES) :]
    pasted = "\n" in text
    while not text.rstrip().endswith(QUOTES):
        if pasted:
            return first
        text += "\n" + more()
    return text.rstrip().removesuffix(QUOTES).strip("\n")


def piped_messages() -> Iterator[str]:
    """The messages on standard input: a line each, or several lines between triple quotes."""
    lines = (line.rstrip("\r\n") for line in sys.stdin)

    def more() -> str:
        for line in lines:
            return line
        raise UsageError(f"the input ends in a message that {QUOTES} began; end the message with {QUOTES}")

    for line in lines:
        yield message(line, more)


class History:
    """The lines typed, one JSON string a line, in a file that only its owner can read.

    Each line is appended at once, so that a killed process loses nothing and several conversations can share the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[str]:
        """The latest lines, oldest first, without lines that cannot be read."""
        try:
            raw = self._path.read_text("utf-8", "replace").splitlines()
        except OSError:
            return []
        if len(raw) > 2 * KEPT_LINES:
            self._write(raw[-KEPT_LINES:], os.O_TRUNC)
        return [line for line in map(_decode, raw[-KEPT_LINES:]) if line]

    def add(self, line: str) -> None:
        self._write([json.dumps(line)], os.O_APPEND)

    def _write(self, lines: Sequence[str], mode: int) -> None:
        """Write the lines; an error is ignored, since a chat works without a history."""
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | mode, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o600)
                file.write("".join(f"{line}\n" for line in lines))


def _decode(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def history_path() -> Path:
    """In the user's state folder (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return user_path(home) / "opensled" / "chat_history.jsonl"


class Terminal:
    """Reads messages from a terminal, with editing, history and completion if Python has readline.

    A paste of several lines is one message. GNU readline and most terminals mark a paste ("bracketed paste"); without
    that, lines belong together that come faster than a person types.
    """

    def __init__(self, prompt: str, completions: Sequence[str], history: History | None) -> None:
        self._history, self._completions = history, sorted(completions)
        self._interrupt_is_a_key = self._marks_pastes = False
        try:
            import readline
        except ModuleNotFoundError:
            self._readline, self._prompt = None, prompt
            return
        self._readline = readline
        self._prompt = _mark_colours(prompt)
        readline.set_auto_history(False)
        readline.set_completer_delims("")
        readline.set_completer(self._complete)
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
        if not libedit:
            self._interrupt_is_a_key = True
            self._marks_pastes = os.environ.get("TERM", "dumb") not in ("dumb", "")
            readline.parse_and_bind(f"set enable-bracketed-paste {'on' if self._marks_pastes else 'off'}")
            readline.parse_and_bind(r'"\C-c": "\C-a\C-k\C-v\C-c\C-m"')  # a line that says DISCARD
        for line in history.load() if history else ():
            readline.add_history(line)

    def messages(self) -> Iterator[str]:
        """Messages until Ctrl-D; Ctrl-C discards the present one."""
        while True:
            try:
                text = message(self._read_lines(self._prompt), lambda: self._read_lines("... "))
            except KeyboardInterrupt:
                if not self._interrupt_is_a_key:
                    print()
                continue
            except EOFError:
                print()
                return
            self._remember(text)
            yield text

    def _read_lines(self, prompt: str) -> str:
        """A line, or the lines of a paste; the last one of a paste can be continued."""
        text = self._line(prompt)
        rest = "" if self._marks_pastes else _pasted_rest()
        if not rest:
            return text
        print(visible(rest), end="", flush=True)
        return f"{text}\n{rest}".rstrip("\n") + ("" if rest.endswith("\n") else self._line(""))

    def _line(self, prompt: str) -> str:
        with _without_interrupts() if self._interrupt_is_a_key else contextlib.nullcontext():
            line = input(prompt)
        if self._interrupt_is_a_key and line.endswith(DISCARD):
            raise KeyboardInterrupt
        return line

    def _remember(self, line: str) -> None:
        if not line.strip():
            return
        if self._readline:
            self._readline.add_history(line)
        if self._history:
            self._history.add(line)

    def _complete(self, text: str, state: int) -> str | None:
        found = [each for each in self._completions if text and each.startswith(text)]
        return found[state] if state < len(found) else None


def _without_interrupts() -> contextlib.AbstractContextManager[None]:
    """Ctrl-C comes as a key while a line is typed: a signal just before readline waits would be lost."""
    import termios

    def change(mode: list[Any]) -> None:
        mode[6] = list(mode[6])
        mode[6][termios.VINTR] = bytes([os.fpathconf(sys.stdin.fileno(), "PC_VDISABLE")])

    return _terminal_mode(change)


def _pasted_rest() -> str:
    """What has come after a line before a person could type it, unfinished lines included."""
    import termios

    def change(mode: list[Any]) -> None:
        mode[3] &= ~(termios.ICANON | termios.ECHO)

    terminal, found = sys.stdin.fileno(), b""
    with _terminal_mode(change):
        while len(found) < LARGEST_PASTE and select.select([terminal], [], [], PASTE_GAP)[0]:
            found += os.read(terminal, LARGEST_PASTE) or b"\n"
    return found.decode("utf-8", "surrogateescape").replace("\r\n", "\n").replace("\r", "\n")


@contextlib.contextmanager
def _terminal_mode(change: Callable[[list[Any]], None]) -> Iterator[None]:
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    changed = list(before)
    change(changed)
    termios.tcsetattr(terminal, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _mark_colours(prompt: str) -> str:
    """Readline must not count colour codes as columns: they stand between \\x01 and \\x02."""
    return re.sub(r"(\x1b\[[0-9;]*m)", "\x01\\1\x02", prompt)
