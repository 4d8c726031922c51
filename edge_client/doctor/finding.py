"""Findings of checks. A check that fails or hangs becomes a finding too."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

from opensled.core.errors import OpenSledError
from opensled.core.printable import visible

T = TypeVar("T")
Status = Literal["ok", "warn", "fail"]
LONGEST = 400  # characters of a detail; a hostile server could send megabytes


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str  # its name, such as "certificate"
    status: Status
    detail: str  # what was found, in one sentence
    fix: str = ""  # a command, or what to do; "" for what is ok
    exit_code: int = 0  # the exit code of the doctor for this failure

    def as_json(self) -> dict[str, str]:
        fields = asdict(self)
        del fields["exit_code"]
        return fields


def ok(check: str, detail: str) -> Finding:
    """A check without a problem."""
    return Finding(check, "ok", plain(detail))


def warn(check: str, detail: str, fix: str) -> Finding:
    """It works, but not as well as it could, or not for long."""
    return Finding(check, "warn", plain(detail), fix)


def fail(check: str, detail: str, fix: str, kind: type[OpenSledError] = OpenSledError) -> Finding:
    """A failure; the exit code of `kind` becomes the doctor's."""
    return Finding(check, "fail", plain(detail), fix, kind.exit_code)


def report_error(check: str, error: Exception, fix: str) -> Finding:
    """A failure by an exception."""
    kind = type(error) if isinstance(error, OpenSledError) else OpenSledError
    detail = str(error) if isinstance(error, OpenSledError) else f"{type(error).__name__}: {error}"
    return fail(check, detail, fix, kind)


def plain(text: str) -> str:
    """`text` as one printable line, since parts of it come from a peer."""
    line = visible(" ".join(text.split()))
    line = line.encode("utf-8", "replace").decode()  # no lone surrogates
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


async def guard(check: str, work: Awaitable[list[Finding]], seconds: float) -> list[Finding]:
    """The findings of `work`; an exception or more than `seconds` seconds gives a failure."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError:
        return [fail(check, f"no result within {seconds:g} s", "try again when the machine is less busy")]
    except Exception as error:
        return [
            report_error(
                check, error, "read the cause; if it makes no sense, report it as a bug of opensled doctor"
            )
        ]


async def in_thread(work: Callable[[], T]) -> T:
    """The result of a blocking call. Its thread is a daemon: the process can end while the call hangs (a resolver
    or a network drive that does not answer)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(method: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            method(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = (future.set_result, work())
        except Exception as error:
            outcome = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop has ended: nothing waits for the result
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, daemon=True).start()
    return await future
