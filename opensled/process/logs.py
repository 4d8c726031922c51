"""Logging of every verb: warnings as plain lines by default, or one JSON object per line.

With JSON, what libraries, native code and child processes write to standard error by themselves becomes an object, too
(foreign_lines.py), and so do the lines on standard output that tell of this process, such as its address.

Logs never carry prompts, answers or bearer tokens: none of our messages contains one. Libraries log from warnings on
only, at every level, because we cannot promise the same for them. Above level debug an exception of a library shows
only its type and place, because its text may quote its input.

Strangers can make a process log: each line has a bound, and so have the warnings and errors of one place in the code.
"""

import json
import logging
import math
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

from opensled.core.errors import OpenSledError
from opensled.core.printable import visible, visible_line

READY = "listening on "  # HOST:PORT, what a ready line says
LEVELS = ("debug", "info", "warning", "error")
OURS = (
    "opensled",
    "http_api",
    "edge_client",
    "verify_server",
    "scheduler",
    "relay",
    "hw_profiles",
    "home",
    "adapt",
    "lab",
    "uvicorn",  # logs its start and end
)
# Every log record has these; others come from `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class _Discreet(logging.Formatter):
    """Shows the text of a library's exception at level debug only."""

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # another handler's formatter may have left all of it here
        return super().format(record)

    def formatException(self, exc_info: Any) -> str:
        if logging.getLogger("opensled").isEnabledFor(logging.DEBUG):
            return _short(visible(super().formatException(exc_info)), 16_000)
        places = _short(visible("".join(_places(exc_info[1]))), 16_000)
        return f"{places} (texts of libraries: --log-level debug)"


def _short(text: str, most: int = 1_000) -> str:
    """`text`; of a longer one both ends."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def _places(error: BaseException) -> list[str]:
    """A traceback without messages, the first cause first."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    earlier = [*_places(cause), "\nwhich led to\n\n"] if cause else []
    kind, words = type(error), f": {error}" if isinstance(error, OpenSledError) else ""
    trace = ["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]
    return [*earlier, *trace, f"{kind.__module__}.{kind.__qualname__}{words}"]


class JsonFormatter(_Discreet):
    """One JSON object in pure ASCII: time (ISO 8601, UTC), level, logger, message, extra fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _short(record.getMessage()),
        }
        document |= {name: value for name, value in _extra(record).items() if name not in document}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, default=str)


class PlainFormatter(_Discreet):
    """A line for people: LEVEL logger: message, then the extra fields as name=value."""

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = (f"{name}={value}" for name, value in _extra(record).items())
        return visible_line(" ".join([_short(super().formatMessage(record)), *fields]))


def _extra(record: logging.LogRecord) -> dict[str, object]:
    """The caller's `extra=`; libraries add names with an underscore for themselves."""
    given = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    told = {name: value for name, value in given.items() if not name.startswith("_")}
    return {name: _short(value) if isinstance(value, str) else value for name, value in told.items()}


def _utc(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds * 1000) % 1000:03d}Z"


class _Stderr(logging.StreamHandler):
    """Writes to the current standard error, not to that of the time of configuration."""

    kept: TextIO | None = None  # that of the process, where the current one is captured
    many, period = 20, 10.0  # warnings of one place in the code, in so many seconds; chosen

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[tuple[str, int]] = Counter()  # of the present period, by place
        self._since, self._left_out = -math.inf, 0

    def emit(self, record: logging.LogRecord) -> None:
        if self._is_one_too_many(record):
            self._left_out += 1
            return
        if self._left_out:
            record.left_out, self._left_out = self._left_out, 0
        self.stream = self.kept or sys.stderr
        super().emit(record)

    def _is_one_too_many(self, record: logging.LogRecord) -> bool:
        """Whether too many warnings have come from its place in the code lately; lines that have none there, such as of
        a library's native code, are not counted."""
        now, place = time.monotonic(), (record.name, record.lineno)
        if now - self._since >= self.period:
            self._since, self._counts = now, Counter()
        self._counts[place] += record.levelno >= logging.WARNING and record.lineno > 0
        return self._counts[place] > self.many

    def handleError(self, record: logging.LogRecord) -> None:
        """What the handler itself would tell comes back to it where standard error is captured, without end."""
        if self.kept is None:
            super().handleError(record)


def keep(stream: TextIO | None) -> None:
    """From now on logs go to this stream; None: to the current standard error."""
    _Stderr.kept = stream


def configure(level: str = "warning", as_json: bool = False) -> None:
    """Send the logs of this process to standard error; `level` is one of LEVELS."""
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    root, wanted = logging.getLogger(), getattr(logging, level.upper())
    for old in [old for old in root.handlers if isinstance(old, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(logging.WARNING, wanted))
    for name in OURS:
        logging.getLogger(name).setLevel(wanted if wanted < logging.WARNING else logging.NOTSET)
    logging.captureWarnings(as_json)
    if as_json:
        sys.excepthook = _log_crash


def tell(message: str) -> None:
    """What a command is doing: one line on standard error, in the form of the logs; none where only errors count."""
    if logging.getLogger().isEnabledFor(logging.WARNING):
        _say(logging.INFO, "", message)


def announce(message: str) -> None:
    """What a user should know and may not expect: one line as by `tell`, at every log level."""
    _say(logging.WARNING, "note: ", message)


class Spell:
    """How long something took, in seconds; by now, while it goes on."""

    def __init__(self) -> None:
        self._begun, self._took = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        return self._took or time.monotonic() - self._begun

    def end(self) -> None:
        self._took = self.seconds


@contextmanager
def tell_long(work: str, every: float = 5.0) -> Iterator[Spell]:
    """While inside, tells every few seconds (`every`) that `work` goes on, and for how long by now."""
    spell, ended = Spell(), threading.Event()

    def tell_on() -> None:
        while not ended.wait(every):
            tell(f"{work} ({spell.seconds:.0f} s)")

    teller = threading.Thread(target=tell_on, name="tell_long", daemon=True)
    teller.start()
    try:
        yield spell
    finally:
        spell.end()
        ended.set()
        teller.join()


def _say(level: int, start: str, message: str) -> None:
    if _as_json():
        record = _record(level, message)
        for handler in logging.getLogger().handlers:
            handler.handle(record)
    else:
        print(start + visible_line(message), file=sys.stderr, flush=True)


def tell_foreign(line: str) -> None:
    """A line that something else than our logging wrote to standard error; at every log level."""
    record = _record(logging.WARNING, line, "stderr")
    for handler in logging.getLogger().handlers:
        handler.handle(record)


def show(message: str) -> None:
    """One line on standard output, in the form of the logs: what this process is, and where it listens."""
    line = JsonFormatter().format(_record(logging.INFO, message)) if _as_json() else visible_line(message)
    print(line, flush=True)


def show_ready(address: str) -> None:
    """The line for which programs wait: requests are answered at HOST:PORT from now on."""
    show(f"{READY}{address}")


def ready_address(line: str) -> str:
    """HOST:PORT of a ready line, in either form; "" for another line."""
    if line.startswith("{"):
        try:
            line = str(json.loads(line)["message"])
        except (ValueError, KeyError):
            return ""
    return line.removeprefix(READY).strip() if line.startswith(READY) else ""


def _record(level: int, message: str, name: str = "opensled") -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 0, message, (), None)


def _as_json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def last_word(message: str) -> None:
    """Why a command ends: one line on standard error, in the form of the logs."""
    if _as_json():
        logging.getLogger("opensled").error(" ".join(message.split("\n")))
    else:
        print("error:", _short(visible_line(message), 4_000), file=sys.stderr)


def _log_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("opensled").critical("a bug ended the process", exc_info=(kind, error, trace))


@contextmanager
def redirect(handler: logging.Handler) -> Iterator[None]:
    """While inside, logs go only to `handler`."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, [handler]
    try:
        yield
    finally:
        root.handlers = before
