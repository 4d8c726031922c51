"""How much one client may send per second: floods wait or lose their connection, honest devices meet no limit."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from lab.benchmarks.attacks import messages
from lab.benchmarks.attacks.connection import Connection, Peer
from opensled.core.errors import Unreachable
from opensled.core.messages import ChatMessage, Failure, Open, SamplingParams
from tests.bad_input import CANCEL, drafting, opening
from tests.fakes import FakeEngine, FakeText, OracleDrafter, continuation
from tests.gated_target import SlowEngine
from tests.loops import cancelled
from tests.raw_wire import raw_connection, raw_stream
from tests.serving import PROMPT, finish, first_reply, linked, serving
from tests.system import ask, until
from verify_server.access.client_limits import ClientLimits, Rate
from verify_server.access.connections import ConnectionCloser, address_of, peer_of
from verify_server.access.security import Tenants
from verify_server.access.token_bucket import MAX_BUCKETS, TokenBucket, TokenBuckets

LONG = SamplingParams(temperature=0, max_tokens=150)
TWO = Tenants((("token-a", "a"), ("token-b", "b")))


# -- rates ------------------------------------------------------------------------------------------------


def test_a_bucket_gives_its_burst_at_once_and_then_its_rate():
    bucket = TokenBucket(Rate(10.0, 5.0), 0.0)
    assert [bucket.take(1, 0.0) for _ in range(7)] == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.2])
    assert bucket.take(1, 0.2) == pytest.approx(0.1)
    assert bucket.take(5, 100.0) == 0.0
    assert bucket.take(50, 100.0) == pytest.approx(5.0)


def test_the_longest_wait_of_all_names_counts_and_old_buckets_go():
    buckets = TokenBuckets(Rate(1.0, 1.0))
    assert buckets.take(("a", "b"), 1.0, 0.0) == 0.0
    assert buckets.take(("a",), 1.0, 0.0) == 1.0
    assert buckets.take(("a", "b"), 1.0, 0.0) == 2.0
    assert buckets.take((), 1.0, 0.0) == 0.0
    for number in range(2 * MAX_BUCKETS):
        buckets.take((str(number),), 1.0, 0.0)
    assert len(buckets._buckets) == MAX_BUCKETS and buckets.take(("a",), 1.0, 0.0) == 0.0


@pytest.mark.parametrize("kind", ["stale", "repeated", "empty", "withdrawn"])
async def test_messages_that_gain_nothing_wait_for_their_turn(kind):
    frames = {
        "stale": [drafting(48, 48, counter=number) for number in range(1, 41)],
        "repeated": [drafting(48, counter=1)] * 40,
        "empty": [drafting(counter=number) for number in range(1, 41)],
        "withdrawn": [drafting(*[48] * (number % 2), counter=number) for number in range(1, 81)],
    }
    engine = FakeEngine(num_blocks=1100, context_length=4000)
    limits = ClientLimits(idle_messages=Rate(100.0, 10.0))
    async with (
        serving(engine=engine, client_limits=limits) as (manager, address),
        raw_stream(address) as stream,
    ):
        started = time.monotonic()
        await stream.send(opening(max_tokens=3000), *frames[kind], CANCEL)
        await until(lambda: manager.stats.opened["new"] and not manager.remembered)
        assert time.monotonic() - started > 0.2  # (40 - 1 - 10) / 100, with room for clocks
        assert manager.stats.limited["idle_messages"]


class Hesitant(OracleDrafter):
    """Has nothing to propose every other time, so that the device hands the drive back."""

    def propose(self):
        self.times = getattr(self, "times", 0) + 1
        return iter(()) if self.times % 2 else super().propose()


@pytest.mark.parametrize(
    ("engine", "drafter", "tokens", "rounds"),
    [
        (FakeEngine, OracleDrafter(0.7), 400, 50),  # a draft that is verified costs nothing here
        (SlowEngine, Hesitant(1.0), 150, 30),  # so slow that no draft comes late
    ],
    ids=["drafts", "drives handed back"],
)
async def test_a_device_that_keeps_to_its_turns_meets_no_limit(engine, drafter, tokens, rounds):
    """However many rounds a second."""
    limits = ClientLimits(idle_messages=Rate(0.001, 8.0))
    async with (
        serving(engine=engine(num_blocks=1100, context_length=4000), client_limits=limits) as (
            manager,
            address,
        ),
        linked(address) as link,
    ):
        answer = await ask(link, PROMPT, drafter, SamplingParams(temperature=0, max_tokens=tokens))
        assert list(answer.tokens) == continuation(PROMPT, tokens)
        assert getattr(drafter, "times", len(answer.rounds)) > rounds
        assert not manager.stats.limited


async def test_large_messages_wait_before_they_are_parsed():
    limits = ClientLimits(bytes=Rate(3e4, 1e5), small_bytes=1000)
    async with serving(client_limits=limits) as (manager, address), linked(address) as link:
        started = time.monotonic()
        huge = Open("a" * 12_000, LONG)  # 64 characters for each position of the context, nearly
        replies = await asyncio.gather(*(first_reply(link, huge) for _ in range(12)))
        assert all(isinstance(reply, Failure) for reply in replies)
        assert time.monotonic() - started > 0.3 and manager.stats.limited["bytes"] >= 3
        assert (await finish(link))[1] == continuation(PROMPT, 20)


async def test_calls_wait_until_the_reading_of_the_last_ones_is_paid():
    """Small messages of many parts: each becomes thousands of objects."""
    limits = ClientLimits(reading=Rate(0.05, 0.01))
    async with serving(client_limits=limits) as (manager, address), linked(address) as link:
        turns = Open(tuple([ChatMessage("", "")] * 3000), LONG)
        replies = [await first_reply(link, turns) for _ in range(3)]
        assert all(isinstance(reply, Failure) for reply in replies)
        assert manager.stats.limited["reading"]


async def test_calls_wait_until_the_tokenizing_of_the_last_ones_is_paid():
    """A text that does not fit is refused only once its tokens are known."""

    class SlowText(FakeText):
        def encode(self, text):
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass
            return super().encode(text)

    limits = ClientLimits(reading=Rate(0.1, 0.01))
    serves = serving(client_limits=limits, text=SlowText())
    async with serves as (manager, address), linked(address) as link:
        started = time.monotonic()
        for _ in range(3):
            assert isinstance(await first_reply(link, Open("a" * 400, LONG)), Failure)
        assert manager.stats.limited["reading"] == 2
        assert time.monotonic() - started > 0.25  # (2 * 0.02 - 0.01) / 0.1, beside 3 * 0.02 for the work


async def test_a_peer_cannot_send_far_ahead_of_what_is_read():
    engine = FakeEngine(num_blocks=1100, context_length=4000)
    limits = ClientLimits(idle_messages=Rate(0.001, 8.0))
    async with serving(engine=engine, client_limits=limits, tenants=TWO) as (manager, address):
        sent = await asyncio.to_thread(_bytes_ahead, Peer(address, "token-a"), 4 << 20)
        assert manager.stats.limited["idle_messages"] and sent < 1 << 20


def _bytes_ahead(peer, most):
    """Bytes of late drafts, at most `most`, that a server takes unread before it takes no more for 0.5 s."""
    late, sent, taken = messages.draft(1, len(PROMPT)), 0, time.monotonic()
    with Connection(peer, lambda: time.monotonic() < taken + 0.5) as connection:
        stream = connection.call()
        connection.send(stream, messages.opening(ids=PROMPT, max_tokens=3000))
        while sent < most and connection.send(stream, late):
            sent, taken = sent + len(late), time.monotonic()
            if not sent % (100 * len(late)):
                connection.pump()
    return sent


async def test_calls_wait_for_their_turn():
    limits = ClientLimits(calls=Rate(10.0, 5.0))
    async with serving(client_limits=limits) as (manager, address), linked(address) as link:
        started = time.monotonic()
        await asyncio.gather(*(link.describe() for _ in range(20)))
        assert time.monotonic() - started > 0.25 and manager.stats.limited["calls"] > 10


async def test_calls_beyond_those_that_may_wait_are_sent_away():
    limits = ClientLimits(calls=Rate(0.1, 1.0), opening=4)
    async with serving(client_limits=limits) as (manager, address), linked(address) as link:
        calls = [asyncio.ensure_future(link.describe()) for _ in range(20)]
        await until(lambda: sum(call.done() for call in calls) == 20 - 4)
        ends = await cancelled(*calls)
        assert (
            sum(isinstance(end, Unreachable) for end in ends) == 15 and manager.stats.limited["streams"] == 15
        )


# -- connections ------------------------------------------------------------------------------------------


@asynccontextmanager
async def bearing_few_refusals():
    """A server that closes a connection after 20 calls refused at once; at the end it must serve others as before."""
    limits = ClientLimits(refusals=Rate(1.0, 20.0))
    async with serving(TWO, client_limits=limits) as (manager, address):
        yield manager, address
        async with linked(address, token="token-a") as link:
            assert (await finish(link))[1] == continuation(PROMPT, 20)


async def test_too_many_calls_without_access_close_the_connection():
    async with bearing_few_refusals() as (manager, address):
        async with raw_connection(address, token="wrong") as stranger:
            for _ in range(30):
                stranger.call(opening())
            await asyncio.wait_for(stranger.closed.wait(), 20)
        async with raw_connection(address, token="wrong") as again:
            again.call(opening())  # its address is known by now
            await asyncio.wait_for(again.closed.wait(), 20)
        assert manager.stats.refused["unauthorized"] == 31


async def test_a_connection_that_only_resets_is_closed():
    async with bearing_few_refusals() as (manager, address):
        async with raw_connection(address, token="token-a") as restless:
            while not restless.closed.is_set():
                restless.reset(restless.call())
                await asyncio.sleep(0.001)
        assert manager.stats.limited["refusals"]


PEERS = {
    "ipv4:192.0.2.1:4711": (("192.0.2.1", 4711), "192.0.2.1"),
    "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:4711": (("2001:db8:1:2:3:4:5:6", 4711), "2001:db8:1:2::/64"),
    "ipv6:%5Bfe80::1%25eth0%5D:1": (("fe80::1", 1), "fe80::/64"),
    "ipv6:%5B::ffff:192.0.2.1%5D:4711": (("192.0.2.1", 4711), "192.0.2.1"),
    "unix:": (None, "unix:"),
}


@pytest.mark.parametrize("name", PEERS)
def test_peers_and_their_addresses(name):
    assert (peer_of(name), address_of(name)) == PEERS[name]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_one_connection_is_closed_and_no_other(host):
    accepted = []
    server = await asyncio.start_server(lambda *ends: accepted.append(ends), host, 0)
    port = server.sockets[0].getsockname()[1]
    ends = [await asyncio.open_connection(host, port) for _ in range(3)]
    await until(lambda: len(accepted) == 3)
    own = ends[1][1].get_extra_info("sockname")[1]
    ConnectionCloser().close(f"ipv4:{host}:{own}" if "." in host else f"ipv6:%5B{host}%5D:{own}")
    assert await asyncio.wait_for(ends[1][0].read(), 20) == b""
    assert not ends[0][0].at_eof() and not ends[2][0].at_eof()
    for _, writer in (*ends, *accepted):
        writer.close()
    server.close()
