"""What an observer of a device's link sees of its answers: times, directions and sizes of what passes, no contents.

The observer is a link relay between one `opensled edge` and its server, all of them real processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from hw_profiles import catalog
from opensled_testbed.client import stream_chat
from opensled_testbed.link_relay import Relay
from opensled_testbed.processes import Process

# Drafts all the time, and blocks of one length: what a frame tells is then how many tokens were accepted.
SERVER = ("--model", "tiny", "--policy", "fcfs", "--draft-wait", "1", "--threads", "1")
DEVICE = (
    "--drafter",
    "llamacpp",
    "--stop",
    "fixed",
    "--draft-length",
    "4",
    "--threads",
    "1",
    "--no-look-ahead",
)
QUIET_S = 0.2  # without a byte: the stream is over


class Passed(NamedTuple):
    """One read of the relay."""

    at: float  # seconds since the first of the trace
    size: int  # bytes; negative: from the server


@dataclass(frozen=True)
class Answered:
    """One answer, as its reader and the observer saw it."""

    prompt: int  # index
    trace: tuple[Passed, ...]
    tokens: int
    seconds: float  # for the reader

    @property
    def bytes(self) -> int:
        return sum(abs(each.size) for each in self.trace)

    @property
    def lasted(self) -> float:
        """Seconds for which the observer saw frames."""
        return self.trace[-1].at


@dataclass
class Tap:
    """Collects what passes a relay."""

    events: list[tuple[float, int]] = field(default_factory=list)

    def hear(self, up: bool, size: int) -> None:
        self.events.append((asyncio.get_running_loop().time(), size if up else -size))

    async def quiet(self, seconds: float) -> None:
        """Wait until nothing has passed for so long."""
        while (left := self.events[-1][0] + seconds - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left)

    def take(self) -> tuple[Passed, ...]:
        """The trace since the last call."""
        events, self.events = self.events, []
        return tuple(Passed(at - events[0][0], size) for at, size in events)


class WatchedDevice:
    """A device behind an observed link."""

    def __init__(self, http: httpx.AsyncClient, tap: Tap, quiet: float) -> None:
        """`quiet`: seconds without a byte after which an answer is over on the wire."""
        self._http, self._tap, self._quiet = http, tap, quiet

    async def answer(self, prompt: int, body: dict[str, Any]) -> Answered:
        """Ask, read the answer, and wait until the wire is quiet."""
        self._tap.take()
        reply = [each async for each in stream_chat(self._http, body)][-1]
        await self._tap.quiet(self._quiet)
        return Answered(prompt, self._tap.take(), reply.usage["completion_tokens"], reply.seconds)


@asynccontextmanager
async def watched_devices(
    combinations: Mapping[str, Sequence[str]], link: str
) -> AsyncIterator[dict[str, WatchedDevice]]:
    """A server, and for each combination of flags one device behind a relay with the profile `link`."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(Process(("serve", *SERVER, "--listen", "127.0.0.1:0"), isolated=True))
        address = await asyncio.to_thread(server.wait_ready)
        devices = {}
        for name, flags in combinations.items():
            relay, tap = Relay(catalog.link(link), address), Tap()
            relay.observer = tap.hear
            await stack.enter_async_context(relay)
            words = ("edge", *DEVICE, *flags, "--server", relay.address, "--http", "127.0.0.1:0")
            device = stack.enter_context(Process(words, isolated=True))
            url = f"http://{await asyncio.to_thread(device.wait_ready)}"
            http = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=120, trust_env=False)
            )
            quiet = QUIET_S + 2 * relay.profile.rtt_p99_ms.typical / 1000
            devices[name] = WatchedDevice(http, tap, quiet)
        yield devices
