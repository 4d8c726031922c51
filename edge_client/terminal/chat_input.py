"""The input of a conversation: lines from a terminal or from a pipe."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

KEPT_LINES = 1000


def piped_lines() -> Iterator[str]:
    """The lines of standard input, one question each."""
    for line in sys.stdin:
        yield line.rstrip("\r\n")


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
        return [line for line in map(_decoded, raw[-KEPT_LINES:]) if line]

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


def _decoded(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def history_path() -> Path:
    """In the user's state folder (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser() / "opensled" / "chat_history.jsonl"


class Terminal:
    """Reads lines from a terminal, with editing, history and completion if Python has readline."""

    def __init__(self, prompt: str, completions: Sequence[str], history: History | None) -> None:
        self._history, self._completions = history, sorted(completions)
        try:
            import readline
        except ModuleNotFoundError:
            self._readline, self._prompt = None, prompt
            self._interrupt_is_a_key = False
            return
        self._readline = readline
        self._prompt = _unmeasured(prompt)
        readline.set_auto_history(False)
        readline.set_completer_delims("")
        readline.set_completer(self._complete)
        libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
        self._interrupt_is_a_key = not libedit
        if not libedit:
            readline.parse_and_bind(r'"\C-c": "\C-a\C-k\C-m"')  # an empty line, which asks for another
        for line in history.load() if history else ():
            readline.add_history(line)

    def lines(self) -> Iterator[str]:
        """Lines until Ctrl-D; Ctrl-C discards the present line."""
        while True:
            try:
                with _without_interrupts() if self._interrupt_is_a_key else contextlib.nullcontext():
                    line = input(self._prompt)
            except KeyboardInterrupt:
                print()
                continue
            except EOFError:
                print()
                return
            self._remember(line)
            yield line

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


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C comes as a key while a line is typed: a signal just before readline waits would be lost."""
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    changed = [*before[:6], list(before[6])]
    changed[6][termios.VINTR] = bytes([os.fpathconf(terminal, "PC_VDISABLE")])
    termios.tcsetattr(terminal, termios.TCSADRAIN, changed)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _unmeasured(prompt: str) -> str:
    """Readline must not count colour codes as columns: they stand between \\x01 and \\x02."""
    return re.sub(r"(\x1b\[[0-9;]*m)", "\x01\\1\x02", prompt)
