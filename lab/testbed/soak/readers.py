"""Readers who ask one question after another and hold every token against the truth."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from edge_client.link.remote import RemoteSession, RetryPolicy
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from lab.testbed.soak.account import Account, Suspect
from lab.testbed.soak.check import damage
from lab.testbed.soak.questions import Course, Question
from lab.testbed.soak.roads import Roads
from opensled.core.errors import OpenSledError, RequestError

LEAVES = 0.05  # share of answers whose reader leaves in their midst
PAUSE_S = 0.2  # after a request that failed
# Time to read an answer, as a share of the time in which it came. Chosen: without it the fleets of six targets take all
# of a small machine, and what the soak shows is the want of processor time.
READING = 1.0
LONGEST_READING_S = 5.0  # else the fault after a long stall waits for readers who are reading


class Reader(ABC):
    """Asks until it is told to stop; `roads` are its device's."""

    def __init__(self, roads: Roads, course: Course, account: Account, seed: int) -> None:
        self.roads, self._course, self._account = roads, course, account
        self._random = random.Random(seed)
        self.heard_at = -1.0  # when the latest token came, on the account's clock
        self.under_way = False  # an answer has begun, and has not ended
        self._enough = asyncio.Event()

    def stop(self) -> None:
        """No further question after the present one."""
        self._enough.set()

    async def run(self) -> None:
        """Ask; raises nothing that an answer can raise."""
        while not self._enough.is_set():
            number = self._random.randrange(len(self._course.questions))
            await _either(self._enough, await self._ask_safely(number))

    async def _ask_safely(self, number: int) -> float:
        """One answer; seconds until the next question."""
        since = self._account.clock()
        self.heard_at = max(self.heard_at, 0.0)
        try:
            await self._ask(number)
            return min(READING * (self._account.clock() - since), LONGEST_READING_S)
        except OpenSledError as error:
            self._account.failed(error.code, str(error), self.under_way, since)
            return max(PAUSE_S, error.retry_after if isinstance(error, RequestError) else 0.0)
        except Exception as error:  # every other kind is a fault of this software
            self._account.wrong(f"{type(error).__name__}: {error}")
            return PAUSE_S
        finally:
            self.under_way = False

    @abstractmethod
    async def _ask(self, number: int) -> None:
        """One answer to the question of that number, checked to wherever it ends."""

    @abstractmethod
    async def close(self) -> None:
        """Give back what it holds."""

    def _heard(self, since: float) -> float:
        """Something came that was waited for since then; the time now."""
        self._account.waited(since)
        self.heard_at, self.under_way = self._account.clock(), True
        return self.heard_at


class Asking(NamedTuple):
    """How a device of a soak asks."""

    name: str
    drafter: str
    patience: RetryPolicy


class SoakDevice(Reader):
    """A device in this process: the product's own edge loop, with a real drafter in its thread."""

    def __init__(
        self, asking: Asking, roads: Roads, thread: DraftThread, course: Course, account: Account, seed: int
    ) -> None:
        super().__init__(roads, course, account, seed)
        self._asking, self._thread = asking, thread

    async def _ask(self, number: int) -> None:
        question = self._course.questions[number]
        opening = question.opening(self._asking.name)
        session = RemoteSession(self.roads.connect, opening, self._asking.patience)
        leaves_after = self._random.randint(1, 60) if self._random.random() < LEAVES else None
        told: list[int] = []
        over = False
        try:
            over = await self._read(session, question, told, leaves_after)
        finally:
            self._account.resumed += session.reopened
            self._settle(number, told, over, session.truth.finish_reason if over else "")

    async def _read(
        self, session: RemoteSession, question: Question, told: list[int], leaves_after: int | None
    ) -> bool:
        """Fill `told`; whether the answer came to its end."""
        latest = self._account.clock()
        await session.open()
        async with aclosing(generate(session, self._thread, question.params)) as commits:
            async for commit in commits:
                told += commit.tokens
                self._account.accepted[self._asking.drafter] += commit.accepted
                latest = self._heard(latest)
                if leaves_after is not None and len(told) >= leaves_after:
                    break
        if not session.truth.finish_reason:
            self._account.left += 1
        return bool(session.truth.finish_reason)

    def _settle(self, number: int, told: Sequence[int], over: bool, finish_reason: str) -> None:
        """Check what was told."""
        truth, account = self._course.truths[number], self._account
        account.answers += over
        account.tokens += len(told)
        found = damage(told, truth.ids, over)
        if any(found):
            account.suspects.append(Suspect(number, tuple(told), over, found))
        elif over and finish_reason != truth.finish_reason:
            account.wrong(f"an answer ends by {finish_reason}, not by {truth.finish_reason}")

    async def close(self) -> None:
        self._thread.close()
        await self.roads.close()


async def _either(event: asyncio.Event, seconds: float) -> None:
    """Until the event, or for so long."""
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting}, timeout=seconds)
    waiting.cancel()
