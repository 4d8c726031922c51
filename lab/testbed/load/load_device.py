"""One device of a fleet at work: the product's own edge loop over an emulated link, watched."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Protocol

from edge_client.link.remote import Connect, RetryPolicy
from edge_client.round.generate import Commit, generate
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.draft_pace import forward_s
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.fleet import Wish
from lab.testbed.load.device_drafts import CountedDrafting
from lab.testbed.load.load import Item
from lab.testbed.load.records import Arrival, Clock, RequestRecord, Round
from lab.testbed.load.wire import Shares, TimedSession, reply_bytes, request_bytes, weighed
from lab.testbed.simulated.links import Ways
from lab.testbed.traces import ItemTrace
from opensled.core.errors import Overloaded
from opensled.core.messages import Open, Verdict
from opensled.text.tokenizer import TargetTokenizer

QUEUE_S = 0.1  # a user whom the full server turns away tries again so often


class Asks(Protocol):
    """A device or a server that answers a user."""

    async def ask(self, item: Item, record: RequestRecord) -> None:
        """Answer one item; `record` says what happened so far, whatever ends it. Raises OpenSledError."""


class LoadDevice:
    """A device with one drafter. A request that finds it at work is decoded by the server alone, as in the product."""

    def __init__(
        self,
        connect: Connect,
        drafts: CountedDrafting,
        tokenizer: TargetTokenizer,
        clock: Clock,
        *,
        traces: Mapping[str, ItemTrace],
        wish: Wish = Wish(),
        shares: Shares | None = None,
        user_link: Ways | None = None,
    ) -> None:
        """`shares`: of the bytes of its link; without it, and without `user_link`, messages are weighed one by one."""
        self._wish = wish._replace(pace=wish.pace / clock.dilation)
        self._connect, self._tokenizer, self._clock = connect, tokenizer, clock
        self._traces, self._shares, self._user_link = traces, shares, user_link
        self._idle = [drafts]
        self._leaving: set[asyncio.Future[None]] = set()
        self._patience = stretched(RetryPolicy(), clock.dilation)

    async def ask(self, item: Item, record: RequestRecord) -> None:
        request = self._request(item)
        with self._watched(record), self._drafter(record) as drafts:
            if self._user_link:
                size = request_bytes(request)
                record.bytes_up += size
                await self._clock.until(self._user_link.up.deliver_at(self._clock.now(), size))
            counted_elsewhere = self._shares or self._user_link
            connect = self._connect if counted_elsewhere else weighed(self._connect, record)
            session = TimedSession(connect, request, self._patience, self._clock)
            await self._open(session)
            record.prompt_tokens = len(session.truth)
            commits = generate(session, drafts, request.params)
            try:
                await self._read(session, commits, record)
            finally:
                self._leave(commits)

    def _leave(self, commits: AsyncGenerator[Commit, None]) -> None:
        """End the sequence beside whatever its reader does next: as in the product, the answer is complete by then."""
        leaving = asyncio.ensure_future(commits.aclose())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Wait until all sequences are ended; what the server says to that is of no use any more."""
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _request(self, item: Item) -> Open:
        trace = self._traces.get(item.id)
        prompt = trace.prompt_ids if trace else item.prompt
        return Open(prompt, item.params, **self._wish._asdict())

    @contextmanager
    def _watched(self, record: RequestRecord) -> Iterator[None]:
        if self._shares:
            self._shares.enter(record)
        try:
            yield
        finally:
            if self._shares:
                self._shares.leave(record)

    @contextmanager
    def _drafter(self, record: RequestRecord) -> Iterator[CountedDrafting]:
        drafts = self._idle.pop() if self._idle else NoDrafts()
        before = drafts.drafted
        try:
            yield drafts
        finally:
            drafts.interrupt()
            accepted = sum(each.accepted for each in record.rounds)
            record.wasted = drafts.drafted - before - accepted
            if not isinstance(drafts, NoDrafts):
                self._idle.append(drafts)

    async def _open(self, session: TimedSession) -> None:
        """A full server turns people away; they queue."""
        while True:
            try:
                return await session.open()
            except Overloaded:
                await asyncio.sleep(QUEUE_S * self._clock.dilation)

    async def _read(
        self, session: TimedSession, commits: AsyncIterator[Commit], record: RequestRecord
    ) -> None:
        try:
            async for commit in commits:
                now = self._clock.now()
                if commit.drafted:
                    record.rounds.append(Round(session.submitted, now, commit.drafted, commit.accepted))
                if commit.tokens:
                    heard = self._heard(record, now, commit.tokens)
                    record.arrivals.append(Arrival(heard, len(commit.tokens)))
                if session.truth.finish_reason:
                    break
        finally:
            record.text = self._tokenizer.decode(session.truth.generated)
        await self._clock.until(record.arrivals[-1].time)
        record.finish_reason = session.truth.finish_reason

    def _heard(self, record: RequestRecord, now: float, tokens: tuple[int, ...]) -> float:
        """When the user reads tokens that leave now; the own link of a user leads to a drafter beside the server."""
        if self._user_link is None:
            return now
        size = reply_bytes(Verdict(record.prompt_tokens, tokens))
        record.bytes_down += size
        return self._user_link.down.deliver_at(now, size)


class LoneDevice:
    """A device without a server: its draft model writes, as it was recorded, at its own pace."""

    def __init__(
        self, speed: DraftSpeed, tokenizer: TargetTokenizer, clock: Clock, traces: Mapping[str, ItemTrace]
    ) -> None:
        self._speed, self._tokenizer, self._clock, self._traces = speed, tokenizer, clock, traces
        self._one_at_a_time = asyncio.Lock()

    async def ask(self, item: Item, record: RequestRecord) -> None:
        trace = self._traces[item.id]
        ids = trace.alone_ids[: item.max_tokens]
        record.prompt_tokens = len(trace.prompt_ids)
        async with self._one_at_a_time:
            due = self._clock.now() + forward_s(self._speed, len(trace.prompt_ids))  # with it the first token
            for _ in ids:
                await self._clock.until(due)
                record.arrivals.append(Arrival(due, 1))
                due += forward_s(self._speed, 1)
        record.text = self._tokenizer.decode(ids)
        record.finish_reason = "length" if len(ids) == item.max_tokens else "eos"


def stretched(patience: RetryPolicy, dilation: float) -> RetryPolicy:
    """All of its seconds are emulated ones."""
    return RetryPolicy(**{item.name: dilation * getattr(patience, item.name) for item in fields(RetryPolicy)})
