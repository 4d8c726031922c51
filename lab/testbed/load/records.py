"""What happened under load, as the generator and the simulator both tell it. Summaries are made from nothing else.

All times are seconds since the start of the run: emulated seconds where time is dilated.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar


class Round(NamedTuple):
    """One draft block and the verdict that answers it."""

    sent: float
    answered: float
    drafted: int
    accepted: int


class Arrival(NamedTuple):
    """Committed tokens reaching the user."""

    time: float
    tokens: int


@dataclass
class RequestRecord:
    """One request from its due time to its last token."""

    user: int  # who asked: index of the device in the fleet
    group: int  # index of the user's group in the fleet
    item: str  # id of the workload's item
    due: float  # when the arrival process wanted it sent
    sent: float = 0.0
    prompt_tokens: int = 0
    arrivals: list[Arrival] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    wasted: int = 0  # tokens drafted that are not in the text, those never answered included
    bytes_up: int = 0
    bytes_down: int = 0
    finish_reason: str = ""
    text: str = ""  # where the run keeps it
    error: str = ""  # why it has none

    @property
    def tokens(self) -> int:
        """Tokens the user got."""
        return sum(arrival.tokens for arrival in self.arrivals)


@dataclass
class ServerTotals:
    """What all servers did within the measured window; sums."""

    steps: int = 0
    step_sessions: int = 0  # sessions served, summed over steps
    positions: int = 0  # computed by the target: prompts, drafts, padding, and what had to be computed again
    tokens: int = 0  # committed
    stale_drafts: int = 0
    busy_s: float = 0.0  # seconds spent in steps, with those in which the server drafts
    drafting_s: float = 0.0  # seconds in which the server drafts


@dataclass
class RunResult:
    """One run of one baseline at one load."""

    label: str  # "real", "emulated" or "simulated"
    start: float  # the measured window: requests that were sent before it only warmed up
    end: float
    requests: list[RequestRecord] = field(default_factory=list)
    server: ServerTotals = field(default_factory=ServerTotals)
    # The emulated accelerator's own totals over the whole run, in real seconds; empty where there is none.
    emulation: dict[str, float] = field(default_factory=dict)
    # Of all relays together: their tokens are those that they vetted
    hubs: ServerTotals = field(default_factory=ServerTotals)


class Clock:
    """Starts at 0 when it is made."""

    def __init__(self, dilation: float = 1.0) -> None:
        self.dilation = dilation
        self.restart()

    def restart(self) -> None:
        """Now is 0."""
        self._started = time.monotonic()

    def now(self) -> float:
        return (time.monotonic() - self._started) / self.dilation

    async def until(self, moment: float) -> None:
        """Sleep; at once where it has passed."""
        await asyncio.sleep(max(0.0, moment - self.now()) * self.dilation)


Totals = TypeVar("Totals")


def between(before: Totals, after: Totals) -> Totals:
    """What was done from one reading of a dataclass of sums to the next."""
    return type(after)(**{name: value - getattr(before, name) for name, value in vars(after).items()})


def total(several: Sequence[ServerTotals]) -> ServerTotals:
    """Of several servers."""
    names = vars(ServerTotals())
    return ServerTotals(**{name: sum(getattr(each, name) for each in several) for name in names})
