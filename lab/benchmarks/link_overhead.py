"""What the relay adds to a round trip, and how far the delays that it delivers are from those that it drew."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hw_profiles import catalog
from hw_profiles.profiles import LinkProfile
from lab.benchmarks.figure import Comparison, Figure, in_turns
from lab.testbed.link_relay import Relay
from lab.testbed.processes import Process
from lab.testbed.provenance import SEED
from opensled.net.address import host_port, join_host_port

MESSAGE = bytes(60)  # about a draft of four tokens
CONNECTIONS = 16
REQUIRED = 0.95  # an emulated link may be 5 % slower than it says
_EXACTLY = '{{ min = {0}, typical = {0}, max = {0}, source = "no link at all" }}'
NO_DELAY = "\n".join(
    (
        'name = "no delay"',
        "burst = 1",
        *(f"{key} = {_EXACTLY.format(0)}" for key in ("rtt_p50_ms", "rtt_p99_ms", "loss")),
        *(f"{key} = {_EXACTLY.format(1_000_000)}" for key in ("up_mbit_s", "down_mbit_s")),
    )
)


def measure(quick: bool) -> Figure:
    """Medians of round trips in microseconds, emulated where they go over a link."""
    links, dilations = (("wifi-good",), (1,)) if quick else (("wifi-good", "5g", "lte"), (1, 10))
    repeats, trips, bare_trips = (2, 10, 200) if quick else (5, 12, 2000)
    cells = [(link, dilation) for link in links for dilation in dilations]
    with tempfile.TemporaryDirectory() as folder:
        nothing = Path(folder) / "none.toml"
        nothing.write_text(NO_DELAY)
        contenders: dict[str, Callable[[], float]] = {
            "direct": lambda: _alone("", bare_trips),
            "relay, no delay": lambda: _alone(str(nothing), bare_trips),
        }
        samples = in_turns(contenders, repeats)
    for link, dilation in cells:
        samples.update(_cell(link, dilation, trips, repeats))
    return Figure(
        title="Overhead of the link relay",
        unit="us",
        more_is_better=False,
        compared=(
            "Median round trip of 60 bytes over loopback TCP, through the relay in a process of its own: with a "
            "profile without delay against no relay at all; and 16 connections that ask again at once, delivered "
            "against drawn (the same seeded draws, computed without sockets), in emulated time at two dilations."
        ),
        loses=(
            "A relay is two more sockets and two more wake-ups each way, so it cannot play links faster than some "
            "hundred microseconds, and short links at dilation 1 come out late; dilation makes that vanish."
        ),
        samples=samples,
        ratios=(
            Comparison("relay without delay", "relay, no delay", "direct"),
            *(Comparison(_title(*cell), *_series(*cell), REQUIRED) for cell in cells),
        ),
        facts={"connections": CONNECTIONS, "bytes": len(MESSAGE), "round trips of a connection": trips},
    )


def _title(link: str, dilation: int) -> str:
    return f"{link}, dilation {dilation}"


def _series(link: str, dilation: int) -> tuple[str, str]:
    return f"{_title(link, dilation)}, delivered", f"{_title(link, dilation)}, drawn"


def _alone(profile: str, trips: int) -> float:
    """One connection through a relay of `profile`; "" = straight to the echo."""
    [times] = asyncio.run(_pinged(profile, 1, SEED, 1, trips))
    return 1e6 * statistics.median(times)


def _cell(link: str, dilation: int, trips: int, repeats: int) -> dict[str, list[float]]:
    """Delivered and drawn medians; each repeat with another seed."""
    delivered, drawn = _series(link, dilation)
    samples: dict[str, list[float]] = {delivered: [], drawn: []}
    for seed in range(SEED, SEED + repeats):
        times = asyncio.run(_pinged(link, dilation, seed, CONNECTIONS, trips))
        found = [each / dilation for connection in times for each in connection]
        samples[delivered].append(1e6 * statistics.median(found))
        samples[drawn].append(1e6 * statistics.median(_drawn(catalog.link(link), seed, trips)))
    return samples


def _drawn(profile: LinkProfile, seed: int, trips: int) -> Iterator[float]:
    """The same round trips as the relay's models give them, one message at a time."""
    relay = Relay(profile, "127.0.0.1:1", seed=seed)
    now = 0.0
    for _ in range(CONNECTIONS):
        up, down = relay.model(True), relay.model(False)
        for number in range(trips + 2):
            now += 1000.0  # nothing else is under way
            size = len(MESSAGE) if number else 0  # the handshake comes first
            back = down.deliver_at(up.deliver_at(now, size), size)
            if number > 1:
                yield back - now


async def _pinged(profile: str, dilation: int, seed: int, connections: int, trips: int) -> list[list[float]]:
    """Seconds of each round trip of each connection, through a relay process if there is a profile."""
    loop = asyncio.get_running_loop()
    echo = await loop.create_server(Echo, "127.0.0.1", 0)
    address = join_host_port(*echo.sockets[0].getsockname()[:2])
    with _relayed(profile, dilation, seed, address) as way:
        pings: list[Ping] = []
        for _ in range(connections):  # one by one, so that the n-th one here is the relay's n-th
            pings.append((await loop.create_connection(lambda: Ping(trips), *host_port(way)))[1])
        for ping in pings:
            ping.send()
        await asyncio.gather(*(ping.done for ping in pings))
    echo.close()
    return [ping.times[1:] for ping in pings]  # the first one waited for the handshake


@contextmanager
def _relayed(profile: str, dilation: int, seed: int, to: str) -> Iterator[str]:
    """HOST:PORT that leads to `to`."""
    if not profile:
        yield to
        return
    flags = ("--profile", profile, "--to", to, "--dilation", str(dilation), "--seed", str(seed))
    with Process(flags, isolated=True, module="lab.testbed.link_relay") as relay:
        yield relay.wait_ready()


class Echo(asyncio.Protocol):
    """Says what it hears."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Ping(asyncio.Protocol):
    """Sends a message, waits for its echo, sends the next: `trips` times after the first."""

    def __init__(self, trips: int) -> None:
        self.times: list[float] = []  # seconds
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._trips = trips

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(MESSAGE)

    def data_received(self, data: bytes) -> None:
        self.times.append(time.perf_counter() - self._sent)
        if len(self.times) <= self._trips:
            self.send()
        else:
            self._transport.close()
            self.done.set_result(None)
