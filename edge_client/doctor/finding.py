"""Findings of checks."""

from dataclasses import asdict, dataclass
from typing import Literal

from opensled.core.errors import OpenSledError
from opensled.core.printable import visible

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
    """A failure by an exception. `fix`: where the error names no next step by itself."""
    if not isinstance(error, OpenSledError):
        return fail(check, f"{type(error).__name__}: {error}", fix)
    cause, remedy = cause_and_remedy(str(error), fix)
    return fail(check, cause, remedy, type(error))


def cause_and_remedy(words: str, fix: str) -> tuple[str, str]:
    """The two parts of an error or a note of ours, which name the next step behind a semicolon; else `fix` is it."""
    cause, _, remedy = words.partition("; ")
    return cause, plain(remedy).removeprefix("run: ") or fix


def plain(text: str) -> str:
    """`text` as one printable line, since parts of it come from a peer."""
    line = visible(" ".join(text.split()))
    line = line.encode("utf-8", "replace").decode()  # no lone surrogates
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."
