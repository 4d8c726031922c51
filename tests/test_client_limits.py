"""What one client may send and hold: whoever floods, stalls or does not read costs nobody else a place or a word."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from opensled.errors import Overloaded, TruthConflict
from opensled.messages import Draft, DraftBlock, DraftToken, Failure, Open, SamplingParams
from tests.bad_input import CANCEL, drafting, opening, text
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.raw_wire import raw_connection, raw_stream
from tests.serving import PROMPT, finish, first_reply, linked, serving
from tests.system import ask, running, until
from tests.test_tenants import SlowText
from verify_server.client_limits import ClientLimits, Rate, message_bytes
from verify_server.connections import TOGETHER_S, ConnectionCloser, address_of, peer_of
from verify_server.security import TenantLimits, Tenants
from verify_server.session_manager import SessionLimits
from verify_server.session_stream import serve_stream
from verify_server.token_bucket import MOST_BUCKETS, TokenBucket, TokenBuckets

LONG = SamplingParams(temperature=0, max_tokens=150)
QUICK = ClientLimits(farewell_s=0.2)  # seconds that a peer may take to read
TWO = Tenants((("token-a", "a"), ("token-b", "b")), default=TenantLimits(max_sessions=2))


# -- streams that are not read ----------------------------------------------------------------------------


def test_streams_whose_end_is_never_read_end_with_their_connection():
    """A sequence that has finished holds no place, but its stream held memory for as long as its peer liked."""

    async def scenario():
        limits = SessionLimits(max_sessions=40, linger=0.1)
        async with serving(limits=limits, client_limits=QUICK) as (manager, address):
            async with raw_connection(address, window=0) as deaf:
                for _ in range(12):
                    deaf.call(opening(max_tokens=2))
                await asyncio.wait_for(deaf.closed.wait(), 10)
            await until(lambda: not manager.remembered)
            assert manager.stats.limited["unread"]

    asyncio.run(scenario())


def test_a_stream_that_is_read_lives_on_beside_one_that_is_not():
    async def scenario():
        limits = SessionLimits(max_sessions=4, linger=0.1)
        async with (
            serving(limits=limits, client_limits=QUICK) as (manager, address),
            raw_connection(address, window=0) as peer,
        ):
            peer.call(opening(max_tokens=2))
            waiting = peer.call()  # its first message may still come
            await until(lambda: manager.stats.limited["silence"])
            await asyncio.sleep(2 * TOGETHER_S)
            assert not peer.closed.is_set() and waiting not in peer.ended

    asyncio.run(scenario())


def test_a_reader_who_takes_nothing_gives_his_place_to_another():
    async def scenario():
        limits = SessionLimits(max_sessions=1, linger=0.1)
        engine = FakeEngine(num_blocks=1100, context_length=4000)
        async with (
            serving(limits=limits, client_limits=QUICK, engine=engine) as (manager, address),
            raw_connection(address, window=400) as deaf,  # it takes `Opened`, and a few verdicts
            linked(address) as link,
        ):
            deaf.call(opening(max_tokens=3000))
            await until(lambda: manager.remembered)
            assert await refused(link)
            await until(lambda: not any(session.has_reader for session in manager.remembered))
            assert (await finish(link))[1] == continuation(PROMPT, 20)

    asyncio.run(scenario())


def test_a_peer_who_leaves_at_his_failure_leaves_no_session_behind():
    async def scenario():
        said = [Open(PROMPT, LONG), Draft(1, DraftBlock(0, (DraftToken(1),)))]
        failing = asyncio.Event()

        async def receive():
            return said.pop(0) if said else await asyncio.get_running_loop().create_future()

        async def send(message):
            if isinstance(message, Failure):
                failing.set()
                await asyncio.get_running_loop().create_future()

        async with running(FakeEngine(), limits=SessionLimits(linger=60)) as network:
            stream = asyncio.ensure_future(serve_stream(network.manager, "local", receive, send))
            await failing.wait()
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
            assert not network.manager.remembered

    asyncio.run(scenario())


# -- streams at the same time -----------------------------------------------------------------------------


async def refused(link):
    """Whether one more stream of this client is refused."""
    reply = await first_reply(link, Open(PROMPT, LONG))
    return isinstance(reply, Failure) and isinstance(reply.error(), Overloaded)


async def until_refused(link, expected=True):
    deadline = time.monotonic() + 5
    while await refused(link) is not expected:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_streams_that_wait_for_their_open_are_counted():
    async def scenario():
        limits = ClientLimits(opening=3)
        async with (
            serving(TWO, client_limits=limits) as (manager, address),
            linked(address, token="token-a") as link,
            linked(address, token="token-b") as other,
        ):
            async with raw_connection(address, token="token-a") as waiting:
                for _ in range(3):
                    waiting.call()
                await until_refused(link)
                assert manager.stats.limited["streams"]
                assert await refused(other)  # as the address is the same
            await until_refused(link, False)

    asyncio.run(scenario())


def test_behind_a_proxy_only_tenant_and_connection_count():
    async def scenario():
        limits = ClientLimits(opening=3, by_address=False)
        async with (
            serving(TWO, client_limits=limits) as (_, address),
            linked(address, token="token-a") as link,
            linked(address, token="token-b") as other,
            raw_connection(address, token="token-a") as waiting,
        ):
            for _ in range(3):
                waiting.call()
            await until_refused(link)
            assert not await refused(other)

    asyncio.run(scenario())


def test_unread_streams_of_a_tenant_are_no_more_than_his_places_and_a_few():
    """Two places, but sequence after sequence that has finished and is not read."""

    async def scenario():
        limits = SessionLimits(max_sessions=40, linger=30.0, tenants=TWO)
        async with (
            serving(TWO, limits=limits, client_limits=ClientLimits(opening=4)) as (manager, address),
            linked(address, token="token-a") as link,
            raw_connection(
                address, window=600, token="token-a"
            ) as deaf,  # it takes `Opened`, not the whole answer
        ):
            for number in range(6):
                deaf.call(opening(max_tokens=60))
                await until(lambda: manager.stats.opened["new"] == number + 1)  # noqa: B023
                await until(lambda: not manager.loop.sessions)
            assert await refused(link) and manager.stats.limited["streams"]

    asyncio.run(scenario())


def test_prompts_under_a_known_resume_token_are_counted():
    """Its session is known, but its text is tokenized like any other."""

    async def scenario():
        limits = SessionLimits(max_sessions=2, linger=30.0)
        text = SlowText()
        async with serving(limits=limits) as (manager, _):
            manager.inputs.text = text
            known, opened = await manager.open(Open(PROMPT, LONG), "local")
            manager.loop.attach(known, len(PROMPT))
            again = Open("text", LONG, resume_token=opened.resume_token)
            first = asyncio.ensure_future(manager.open(again, "local"))
            await until(lambda: text.waiting == 1)
            with pytest.raises(Overloaded):
                await manager.open(again, "local")
            assert text.waiting == 1
            text.go.set()
            with suppress(TruthConflict):
                await first

    asyncio.run(scenario())


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
    for number in range(2 * MOST_BUCKETS):
        buckets.take((str(number),), 1.0, 0.0)
    assert len(buckets._buckets) == MOST_BUCKETS and buckets.take(("a",), 1.0, 0.0) == 0.0


@pytest.mark.parametrize("kind", ["stale", "repeated", "empty"])
def test_messages_that_gain_nothing_wait_for_their_turn(kind):
    frames = {
        "stale": [drafting(48, 48, counter=number) for number in range(1, 41)],
        "repeated": [drafting(48, counter=1)] * 40,
        "empty": [drafting(counter=number) for number in range(1, 41)],
    }

    async def scenario():
        engine = FakeEngine(num_blocks=1100, context_length=4000)
        limits = ClientLimits(idle_messages=Rate(100.0, 10.0))
        async with (
            serving(engine=engine, client_limits=limits) as (manager, address),
            raw_stream(address) as stream,
        ):
            started = time.monotonic()
            await stream.send(opening(max_tokens=3000), *frames[kind], CANCEL)
            await until(lambda: manager.stats.opened["new"] and not manager.remembered)
            assert time.monotonic() - started > 0.2  # (40 - 1 - 10) / 100 and the time of the rest
            assert manager.stats.limited["idle_messages"] > 20

    asyncio.run(scenario())


def test_a_device_that_keeps_to_its_turns_meets_no_limit():
    """However many rounds a second: a draft that is verified costs nothing here."""

    async def scenario():
        engine = FakeEngine(num_blocks=1100, context_length=4000)
        limits = ClientLimits(idle_messages=Rate(0.001, 8.0))
        async with (
            serving(engine=engine, client_limits=limits) as (manager, address),
            linked(address) as link,
        ):
            params = SamplingParams(temperature=0, max_tokens=400)
            answer = await ask(link, PROMPT, OracleDrafter(0.7), params)
            assert list(answer.tokens) == continuation(PROMPT, 400) and len(answer.rounds) > 50
            assert not manager.stats.limited

    asyncio.run(scenario())


def test_large_messages_wait_before_they_are_parsed():
    async def scenario():
        limits = ClientLimits(bytes=Rate(1e5, 1e5), small_bytes=1000)
        async with serving(client_limits=limits) as (manager, address), linked(address) as link:
            started = time.monotonic()
            huge = Open("a" * 12_000, LONG)  # 64 characters for each position of the context, nearly
            replies = await asyncio.gather(*(first_reply(link, huge) for _ in range(12)))
            assert all(isinstance(reply, Failure) for reply in replies)
            assert time.monotonic() - started > 0.3 and manager.stats.limited["bytes"] >= 3
            assert (await finish(link))[1] == continuation(PROMPT, 20)

    asyncio.run(scenario())


def test_calls_wait_for_their_turn():
    async def scenario():
        limits = ClientLimits(calls=Rate(50.0, 5.0))
        async with serving(client_limits=limits) as (manager, address), linked(address) as link:
            started = time.monotonic()
            await asyncio.gather(*(link.describe() for _ in range(20)))
            assert time.monotonic() - started > 0.25 and manager.stats.limited["calls"] > 10

    asyncio.run(scenario())


# -- connections ------------------------------------------------------------------------------------------


def test_too_many_calls_without_access_close_the_connection():
    async def scenario():
        limits = ClientLimits(refusals=Rate(1.0, 20.0))
        async with serving(TWO, client_limits=limits) as (manager, address):
            async with raw_connection(address, token="wrong") as stranger:
                for _ in range(30):
                    stranger.call(opening())
                await asyncio.wait_for(stranger.closed.wait(), 5)
            async with raw_connection(address, token="wrong") as again:
                again.call(opening())  # its address is known by now
                await asyncio.wait_for(again.closed.wait(), 5)
            assert manager.stats.refused["unauthorized"] == 31
            async with linked(address, token="token-a") as link:
                assert (await finish(link))[1] == continuation(PROMPT, 20)

    asyncio.run(scenario())


def test_a_connection_that_only_resets_is_closed():
    async def scenario():
        limits = ClientLimits(refusals=Rate(1.0, 20.0))
        async with serving(TWO, client_limits=limits) as (manager, address):
            async with raw_connection(address, token="token-a") as restless:
                while not restless.closed.is_set():
                    restless.reset(restless.call())
                    await asyncio.sleep(0.001)
            assert manager.stats.limited["refusals"]
            async with linked(address, token="token-a") as link:
                assert (await finish(link))[1] == continuation(PROMPT, 20)

    asyncio.run(scenario())


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
def test_one_connection_is_closed_and_no_other(host):
    async def scenario():
        accepted = []
        server = await asyncio.start_server(lambda *ends: accepted.append(ends), host, 0)
        port = server.sockets[0].getsockname()[1]
        ends = [await asyncio.open_connection(host, port) for _ in range(3)]
        await until(lambda: len(accepted) == 3)
        own = ends[1][1].get_extra_info("sockname")[1]
        ConnectionCloser().close(f"ipv4:{host}:{own}" if "." in host else f"ipv6:%5B{host}%5D:{own}")
        assert await asyncio.wait_for(ends[1][0].read(), 5) == b""
        assert not ends[0][0].at_eof() and not ends[2][0].at_eof()
        for _, writer in (*ends, *accepted):
            writer.close()
        server.close()

    asyncio.run(scenario())


# -- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "vocab"), [(1024, 2000), (2048, 128), (131_072, 152_064), (1 << 20, 256_000)]
)
def test_a_message_has_room_for_all_that_fits_the_context(context, vocab):
    limit = message_bytes(context, vocab)
    assert len(opening([vocab - 1] * context)) < limit
    assert len(text("The quick brown fox " * (context * 4 // 5 // 4))) < limit  # at four characters a token
    assert limit <= 4 << 20 or context > 131_072


def test_openings_are_bounded_by_the_memory_of_their_messages():
    assert ClientLimits(message_bytes=300_000).most_opening == 128
    assert ClientLimits(message_bytes=4 << 20).most_opening == 16
    assert ClientLimits(message_bytes=1 << 30).most_opening == 1


# -- promises of a pace -----------------------------------------------------------------------------------


def test_an_absurd_pace_shuts_the_door_for_nobody():
    async def scenario():
        limits = SessionLimits(max_sessions=8)
        async with serving(TWO, limits=limits) as (manager, _):
            manager.loop.wake = lambda: None  # nothing finishes
            first, _ = await manager.open(Open(PROMPT, LONG, pace=1e6), "a")
            manager.loop.attach(first, len(PROMPT))
            other, _ = await manager.open(Open(PROMPT, LONG), "b")
            manager.loop.attach(other, len(PROMPT))
            assert first.timing.pace < 1e6

    asyncio.run(scenario())
