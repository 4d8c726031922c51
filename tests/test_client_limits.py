"""What one client may send and hold: whoever floods, stalls or does not read costs nobody else a place or a word."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab.testbed.processes import Process
from opensled.cli.config import options
from opensled.core.errors import Overloaded, TruthConflict
from opensled.core.messages import Draft, DraftBlock, DraftToken, Failure, Open, Opened, SamplingParams
from relay.config import RelayConfig
from tests.bad_input import opening, text
from tests.fakes import FakeEngine, HeldText, continuation
from tests.loops import cancelled
from tests.raw_wire import raw_connection
from tests.serving import PROMPT, finish, first_reply, linked, serving
from tests.sessions import PROFILE
from tests.system import running, until
from verify_server.access.client_limits import MIN_OPENING, ClientLimits, message_bytes
from verify_server.access.connections import TOGETHER_S
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.admission_rules import max_promised
from verify_server.admission.session_manager import SessionLimits
from verify_server.options.limits_config import LimitsConfig
from verify_server.options.serve_config import ServeConfig

LONG = SamplingParams(temperature=0, max_tokens=150)
QUICK = ClientLimits(farewell_s=0.2)  # seconds that a peer may take to read
TWO = Tenants((("token-a", "a"), ("token-b", "b")), default=TenantLimits(max_sessions=2))


# -- streams that are not read ----------------------------------------------------------------------------


async def test_streams_whose_end_is_never_read_end_with_their_connection():
    """A sequence that has finished holds no place, but its stream held memory for as long as its peer liked."""
    limits = SessionLimits(max_sessions=40, linger=0.1)
    async with serving(limits=limits, client_limits=QUICK) as (manager, address):
        async with raw_connection(address, window=0) as deaf:
            for _ in range(12):
                deaf.call(opening(max_tokens=2))
            await asyncio.wait_for(deaf.closed.wait(), 20)
        await until(lambda: not manager.remembered)
        assert manager.stats.limited["unread"]


async def test_a_stream_that_is_read_lives_on_beside_one_that_is_not():
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


async def test_a_reader_who_takes_nothing_gives_his_place_to_another():
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


async def test_a_peer_who_leaves_at_his_failure_leaves_no_session_behind():
    said = [Open(PROMPT, LONG), Draft(1, DraftBlock(0, (DraftToken(1),)))]
    failing = asyncio.Event()

    async def receive():
        return said.pop(0) if said else await asyncio.get_running_loop().create_future()

    async def send(message):
        if isinstance(message, Failure):
            failing.set()
            await asyncio.get_running_loop().create_future()

    async with running(FakeEngine(), limits=SessionLimits(linger=60)) as network:
        stream = asyncio.ensure_future(network.serve(receive, send))
        await failing.wait()
        await cancelled(stream)
        assert not network.manager.remembered


# -- streams at the same time -----------------------------------------------------------------------------


async def refused(link):
    """Whether one more stream of this client is refused."""
    reply = await first_reply(link, Open(PROMPT, LONG))
    return isinstance(reply, Failure) and isinstance(reply.error(), Overloaded)


async def fill(connection):
    """Begin three streams without an `Open`; a fourth one is refused, so they are counted by now."""
    for _ in range(4):
        connection.call()
    await until(lambda: connection.ended)


async def test_streams_that_wait_for_their_open_are_counted():
    limits = replace(QUICK, opening=3)
    async with (
        serving(TWO, client_limits=limits) as (manager, address),
        linked(address, token="token-a") as link,
        linked(address, token="token-b") as other,
    ):
        async with raw_connection(address, token="token-a") as waiting:
            await fill(waiting)
            assert await refused(link)
            assert manager.stats.limited["streams"]
            assert await refused(other)  # as the address is the same
        deadline = time.monotonic() + 30
        while await refused(link):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


async def test_behind_a_proxy_only_tenant_and_connection_count():
    limits = replace(QUICK, opening=3, by_address=False)
    async with (
        serving(TWO, client_limits=limits) as (_, address),
        linked(address, token="token-a") as link,
        linked(address, token="token-b") as other,
        raw_connection(address, token="token-a") as waiting,
    ):
        await fill(waiting)
        assert await refused(link)
        assert not await refused(other)


async def test_unread_streams_of_a_tenant_are_no_more_than_his_places_and_a_few():
    """Two places, but sequence after sequence that has finished and is not read."""
    limits = SessionLimits(max_sessions=40, linger=30.0, tenants=TWO)
    async with (
        serving(TWO, limits=limits, client_limits=ClientLimits(opening=4)) as (manager, address),
        linked(address, token="token-a") as link,
        # It takes `Opened`, not the whole answer
        raw_connection(address, window=600, token="token-a") as deaf,
    ):
        for number in range(6):
            deaf.call(opening(max_tokens=60))
            await until(lambda: manager.stats.opened["new"] == number + 1)  # noqa: B023
            await until(lambda: not manager.loop.machine.sessions)
        assert await refused(link) and manager.stats.limited["streams"]


async def test_prompts_under_a_known_resume_token_are_counted():
    """Its session is known, but its text is tokenized like any other."""
    limits = SessionLimits(max_sessions=2, linger=30.0)
    text = HeldText()
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


# -- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "vocab"), [(1024, 2000), (2048, 128), (131_072, 152_064), (1 << 20, 256_000)]
)
def test_a_message_has_room_for_all_that_fits_the_context(context, vocab):
    limit = message_bytes(context, vocab)
    assert len(opening([vocab - 1] * context)) < limit
    assert len(text("The quick brown fox " * (context * 4 // 5 // 4))) < limit  # at four characters a token
    assert limit <= 4 << 20 or context > 131_072
    assert message_bytes(1 << 40, vocab) < 1 << 31


def test_openings_are_bounded_by_the_memory_of_their_messages():
    assert ClientLimits(message_bytes=300_000).max_opening == 128
    assert ClientLimits(message_bytes=700_000).max_opening == 95
    assert ClientLimits(message_bytes=1 << 30).max_opening == MIN_OPENING


# -- promises of a pace -----------------------------------------------------------------------------------


async def test_an_absurd_pace_shuts_the_door_for_nobody():
    async with serving(TWO, limits=SessionLimits(max_sessions=200)) as (manager, _):
        manager.loop.wake = lambda: None  # nothing finishes
        manager.loop.machine.profile = PROFILE

        async def come(tenant, pace=0.0):
            session, _ = await manager.open(Open(PROMPT, LONG, pace=pace), tenant)
            manager.loop.attach(session, len(PROMPT))
            return session

        first = await come("a", 1e6)
        with pytest.raises(Overloaded, match="pace"):
            while len(manager.remembered) < 100:
                await come("a", 1e6)
        await come("b")
        assert first.timing.pace == max_promised(0.0, PROFILE) < 1e3


async def test_a_tenant_is_promised_no_more_than_his_line_says():
    tenants = Tenants(TWO.by_token, limits={"a": TenantLimits(max_pace=3)})
    async with serving(tenants, limits=SessionLimits(tenants=tenants)) as (manager, _):
        paces = [
            (await manager.open(Open(PROMPT, LONG, pace=pace), tenant))[0].timing.pace
            for tenant, pace in (("a", 10.0), ("a", 2.0), ("b", 10.0))
        ]
        assert paces == [3.0, 2.0, 10.0]


# -- table [limits] of the configuration file ---------------------------------------------------------------------


SERVE = ("serve", "--engine", "tests.fake_target:load", "--model", "fake", "--listen", "127.0.0.1:0")
FILE = "[serve]\nserver-drafter = 'none'\n\n[limits]\ntenant-prompt = 3\ntenant_sessions = 8\nmax-draft = 5\n"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    file: Path = tmp_path_factory.mktemp("etc") / "server.toml"
    file.write_text(FILE)
    with Process(SERVE, isolated=True, environment={"OPENSLED_CONFIG": str(file)}) as process:
        yield process.wait_ready()


async def test_a_request_meets_the_limits_of_the_file(address):
    params = SamplingParams(temperature=0, max_tokens=2)
    async with linked(address) as link:
        taken, more = [await first_reply(link, Open(ids, params)) for ids in ((3, 1, 4), (3, 1, 4, 1))]
    assert isinstance(taken, Opened) and taken.limits.max_draft == 5
    assert isinstance(more, Failure) and "your tenant may send at most 3" in str(more.error())


def test_what_tenants_and_clients_may_take_has_no_flag():
    assert {item.table for item in options(LimitsConfig)} == {"limits"}
    limits = {item.name for item in options(LimitsConfig)}
    assert limits <= {item.name for item in options(ServeConfig) if not item.flags}


def test_a_relay_holds_them_too():
    given = {item.name: item.default + 1 for item in options(LimitsConfig) if item.kind is int}
    serving = RelayConfig(**given, shared_address=True).serving
    assert {name: getattr(serving, name) for name in given} == given and serving.shared_address
