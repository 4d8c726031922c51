"""What happened at one target of a soak: answers, errors, faults, and how long answers stood still."""

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lab.testbed.soak.check import Damage

log = logging.getLogger(__name__)

# Codes with which a request may fail while something is broken: the server is away, or loads, or has no room.
EXPECTED = frozenset({"unreachable", "loading", "overloaded"})
# What starved of memory may fail as well: one step, one stream, one process.
STARVED = frozenset({"engine", "internal"})
EDGE_LOST = "edge_lost"  # the HTTP connection to a device's API broke, or was refused


@dataclass
class Window:
    """One fault, from its injection until every reader hears again. Seconds on the clock of the account."""

    kind: str
    start: float
    end: float = math.inf
    victim: str = ""
    answers: int = 0  # that were under way when it began
    longest_stall: float = 0.0
    tolerated: frozenset[str] = EXPECTED  # codes of errors

    def covers(self, start: float, end: float) -> bool:
        """Whether it was there at any time between the two."""
        return self.start <= end and start <= self.end


@dataclass(frozen=True)
class Suspect:
    """An answer that is not the truth."""

    question: int  # its number in the course
    told: tuple[int, ...]
    complete: bool
    damage: Damage


@dataclass(frozen=True)
class TextSuspect:
    """An answer of a device's API that is not the truth; its tokens are not known."""

    question: int
    text: str
    complete: bool
    damage: Damage


@dataclass
class Account:
    """`clock` in seconds."""

    clock: Callable[[], float]
    answers: int = 0  # complete ones
    tokens: int = 0  # compared with the truth, those of answers that broke off included
    texts: int = 0  # answers among them that were read as text over a device's API
    resumed: int = 0  # times that an answer under way went on after its stream was lost
    accepted: Counter[str] = field(default_factory=Counter)  # by drafter: draft tokens of devices that stood
    left: int = 0  # answers whose reader left on purpose
    suspects: list[Suspect] = field(default_factory=list)
    text_suspects: list[TextSuspect] = field(default_factory=list)
    damages: list[Damage] = field(
        default_factory=list
    )  # for certain; those of suspects join when they are judged
    flips: int = 0  # tokens that a target of level `fast` chose otherwise at a near tie
    refused: Counter[str] = field(
        default_factory=Counter
    )  # by code: requests that failed before the first token
    broken: Counter[str] = field(default_factory=Counter)  # by code: answers that failed after it
    wrongs: list[str] = field(default_factory=list)  # what should never happen
    notes: Counter[str] = field(default_factory=Counter)  # what a fault did, such as a process that it ended
    windows: list[Window] = field(default_factory=list)
    longest_stall: float = 0.0  # between two signs of an answer that no fault was near

    def fault(self, kind: str, answers: int) -> Window:
        """A fault begins."""
        self.windows.append(Window(kind, self.clock(), answers=answers))
        return self.windows[-1]

    def waited(self, since: float) -> None:
        """A reader got something now that waited since then."""
        now = self.clock()
        near = [window for window in self.windows if window.covers(since, now)]
        for window in near:
            window.longest_stall = max(window.longest_stall, now - since)
        if not near:
            self.longest_stall = max(self.longest_stall, now - since)

    def failed(self, code: str, reason: str, begun: bool, since: float) -> None:
        """A request that began at `since` ended by an error; `begun`: after its first token."""
        (self.broken if begun else self.refused)[code] += 1
        near = [window for window in self.windows if window.covers(since, self.clock())]
        if not any(code in window.tolerated for window in near):
            self.wrong(f"{code}: {reason}")

    def wrong(self, what: str) -> None:
        """Something that should never happen."""
        log.warning("wrong: %s", what)
        self.wrongs.append(what)

    @property
    def faults(self) -> Counter[str]:
        """By kind, those that struck while an answer was under way."""
        return Counter(window.kind for window in self.windows if window.answers)

    def stalls(self) -> dict[str, float]:
        """By kind of fault, how long an answer stood still at most."""
        longest: dict[str, float] = {}
        for window in self.windows:
            longest[window.kind] = round(max(longest.get(window.kind, 0.0), window.longest_stall), 2)
        return longest

    def as_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "answers_read_as_text": self.texts,
            "tokens": self.tokens,
            **sum(self.damages, Damage())._asdict(),
            "flips": self.flips,
            "resumed": self.resumed,
            "left": self.left,
            "accepted": dict(self.accepted),
            "refused": dict(self.refused),
            "broken_off": dict(self.broken),
            "faults": dict(self.faults),
            "longest_stall_by_fault_s": self.stalls(),
            "longest_stall_without_fault_s": round(self.longest_stall, 2),
            "notes": dict(self.notes),
            "wrongs": self.wrongs,
        }
