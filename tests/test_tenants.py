"""What a tenant may take: sessions and prompt sizes; whose session gives way; and that others are never mentioned."""

import asyncio
import dataclasses
from contextlib import asynccontextmanager

import pytest

from opensled.core.bounds import MAX_CHARACTERS
from opensled.core.errors import InvalidRequest, NotFound, Overloaded, Unauthorized, UsageError
from opensled.core.messages import ChatMessage, Open, Prefill, SamplingParams
from tests.fakes import CountingText, FakeEngine, HeldText
from tests.serving import PROMPT, finish, first_reply, linked, serving
from tests.system import until
from verify_server.access.security import TenantLimits, Tenants, read_tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.options.serve_config import ServeConfig
from verify_server.start.command import _tenants

LONG = SamplingParams(temperature=0, max_tokens=150)
SHORT = SamplingParams(temperature=0, max_tokens=5)


@pytest.fixture
def token_file(tmp_path):
    def write(text):
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


# -- the token file ---------------------------------------------------------------------------------------


def test_limits_in_the_token_file(token_file):
    path = token_file(
        "t1 alice max_sessions=8 max_prompt=4096 positions_per_s=50 keep=1\nt2 alice  # a second device\n"
        "t3 bob max_prompt=0\nt4 carol\n"
    )
    tenants = _tenants(
        ServeConfig(tokens=str(path), tenant_sessions=2, tenant_prompt=100, tenant_positions=9)
    )
    assert [tenants.of(f"Bearer t{number}") for number in (1, 2, 3, 4)] == ["alice", "alice", "bob", "carol"]
    assert tenants.limits_of("alice") == TenantLimits(8, 4096, 50, keep=1)
    assert tenants.limits_of("bob") == TenantLimits(2, 0, 9)
    assert tenants.limits_of("carol") == TenantLimits(2, 100, 9)
    assert read_tenants(path).limits_of("carol") == TenantLimits()
    with pytest.raises(Unauthorized):
        tenants.of("Basic t1")
    certified = _tenants(ServeConfig(tls_client_ca="ca.pem", tenant_prompt=7))
    assert certified.by_certificate and certified.limits_of("anybody") == TenantLimits(0, 7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("secret", "tokens:1: expected 'TOKEN TENANT"),
        ("secret max_sessions=3", "tokens:1: expected 'TOKEN TENANT"),
        ("# only\n\n", "holds no token"),
        ("secret a b", ":1: expected .* whole number"),
        ("ok a\nsecret a max_sessions=-1", ":2: expected"),
        ("secret a max_sessions=", "expected"),
        ("secret a max_prompt=1e3", "expected"),
        ("secret a max_prompt=\u0663", "ASCII"),
        ("secret a sessions=3", "max_sessions=N"),
        ("secret a max_prompt=3\nother a max_prompt=4", ":2: max_prompt of a is set to another number above"),
        ("secret a\nsecret b", ":2: this token is in the file twice"),
    ],
)
def test_a_bad_line_is_named_without_its_token(token_file, text, problem):
    with pytest.raises(UsageError, match=problem) as error:
        read_tenants(token_file(text))
    assert "secret" not in str(error.value)


def test_a_token_file_that_is_missing_or_that_others_can_read(tmp_path, token_file):
    with pytest.raises(NotFound, match="token file"):
        read_tenants(tmp_path / "none")
    path = token_file("secret alice")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_tenants(path)


# -- prompts ----------------------------------------------------------------------------------------------


def session_limits(max_sessions=3, default=TenantLimits(), **tenants):
    return SessionLimits(
        max_sessions, max_draft=8, linger=60, tenants=Tenants(limits=tenants, default=default)
    )


@pytest.mark.parametrize(
    ("prompt", "tokenized"),
    [
        (tuple(range(1, 12)), 0),
        ("eleven char", 1),
        ((ChatMessage("user", "eleven char"),), 1),
        ("x" * (10 * MAX_CHARACTERS + 1), 0),
        ((ChatMessage("user", "x" * 400), ChatMessage("user", "x" * 400)), 0),
    ],
    ids=["ids", "text", "chat", "huge text", "huge chat"],
)
async def test_a_prompt_beyond_the_limit_costs_nothing(prompt, tokenized):
    engine = FakeEngine(num_blocks=100)
    async with serving(engine=engine, limits=session_limits(default=TenantLimits(0, 10))) as (
        manager,
        address,
    ):
        manager.inputs.text = CountingText()
        async with linked(address) as link:
            error = (await first_reply(link, Open(prompt, SHORT))).error()
            assert isinstance(error, InvalidRequest) and error.field == "prompt"
            assert (
                engine.computed == 0 and not manager.remembered and manager.inputs.text.encoded == tokenized
            )
            await finish(link, Open("ten chars!", SHORT))


async def test_committed_tokens_are_no_prompt():
    """A long answer can be continued after its server was lost."""
    limits = session_limits(default=TenantLimits(0, 3))
    async with serving(limits=limits) as (_, address), linked(address) as link:
        opened, tokens = await finish(link, Open(PROMPT, LONG))
        again = Open(PROMPT, LONG, tuple(tokens[:100]), noise_key=opened.noise_key)
        assert await continued(link, again) == tokens[100:]


async def continued(link, message):
    """The tokens that follow the committed ones."""
    stream = link.connect()
    await stream.send(message)
    await stream.receive()
    tokens = []
    while True:
        while isinstance(verdict := await stream.receive(), Prefill):
            pass
        tokens += verdict.tokens
        if verdict.finish_reason:
            await stream.close()
            return tokens


# -- sessions ---------------------------------------------------------------------------------------------


class Guests:
    """Sessions of several tenants on one server; a step never ends, so that none finishes."""

    def __init__(self, manager):
        self.manager = manager

    async def come(self, tenant, count=1):
        sessions = []
        for _ in range(count):
            session, _ = await self.manager.open(Open(PROMPT, LONG), tenant)
            self.manager.loop.attach(session, len(PROMPT))
            sessions.append(session)
        return sessions

    def held(self):
        return "".join(sorted(session.tenant for session in self.manager.loop.machine.sessions.values()))


@asynccontextmanager
async def idle_server(**limits):
    """The guests of a server whose loop stands still."""
    async with serving(limits=session_limits(**limits)) as (manager, _):
        manager.loop.wake = lambda: None
        yield Guests(manager)


async def test_one_more_session_than_a_tenant_may_have():
    async with idle_server(max_sessions=10, a=TenantLimits(2)) as guests:
        await guests.come("a", 2)
        with pytest.raises(Overloaded, match="all 2 sessions of your tenant are taken") as error:
            await guests.come("a")
        assert error.value.retry_after > 0
        await guests.come("b", 5)
        assert guests.held() == "aabbbbb"


@pytest.mark.parametrize(
    ("max_sessions", "limit"), [(9, TenantLimits(2)), (5, TenantLimits())], ids=["his limit", "the server's"]
)
async def test_his_own_absent_session_gives_way_first(max_sessions, limit):
    async with idle_server(max_sessions=max_sessions, a=limit) as guests:
        gone, *_ = await guests.come("b", 3)
        first, second = await guests.come("a", 2)
        guests.manager.leave(gone)
        guests.manager.leave(second)
        await guests.come("a")
        assert second not in guests.manager.remembered and first in guests.manager.remembered
        assert gone in guests.manager.remembered and guests.held() == "aabbb"


async def test_absent_sessions_of_a_tenant_who_takes_no_more_are_safe():
    async with idle_server(max_sessions=6) as guests:
        gone = [*await guests.come("a", 2), *await guests.come("b", 2)]
        await guests.come("c", 2)
        for session in gone:
            guests.manager.leave(session)
        with pytest.raises(Overloaded):
            await guests.come("c")  # as many as a and b have
        assert guests.held() == "aabbcc"
        await guests.come("d", 2)  # who has fewer takes them: one of a's, then one of b's
        assert guests.held() == "abccdd"
        with pytest.raises(Overloaded):
            await guests.come("d")
        assert guests.held() == "abccdd"


async def test_sessions_with_a_reader_never_give_way():
    async with idle_server(max_sessions=4) as guests:
        await guests.come("a", 4)
        with pytest.raises(Overloaded):
            await guests.come("b")
        assert guests.held() == "aaaa"


async def test_errors_never_mention_others():
    """Names are what they must not tell, nor numbers of sessions that are not the asker's own."""
    async with idle_server(max_sessions=7) as guests:
        await guests.come("mallory-inc", 7)
        with pytest.raises(Overloaded) as error:
            await guests.come("b")
        assert "mallory" not in str(error.value) and not any(c.isdigit() for c in str(error.value))


async def test_prompts_being_tokenized_hold_places():
    """Else a tenant at his limit could keep every core busy with prompts that find no place."""
    async with idle_server(max_sessions=9, a=TenantLimits(2)) as guests:
        manager = guests.manager
        manager.inputs.text = text = HeldText()
        opening = [asyncio.ensure_future(manager.open(Open("text", LONG), "a")) for _ in range(2)]
        await until(lambda: text.waiting == 2)
        with pytest.raises(Overloaded, match="your tenant"):
            await manager.open(Open("text", LONG), "a")
        assert text.waiting == 2
        other = asyncio.ensure_future(manager.open(Open("text", LONG), "b"))
        await until(lambda: text.waiting == 3)
        text.go.set()
        await asyncio.gather(*opening, other)
        assert guests.held() == "aab" and not manager._admission._arriving


# -- resume tokens ----------------------------------------------------------------------------------------


async def test_a_resume_token_belongs_to_its_tenant():
    async with idle_server(max_sessions=9) as guests:
        manager = guests.manager
        message = Open(PROMPT, LONG)
        session, opened = await manager.open(message, "a")
        outbox = manager.loop.attach(session, len(PROMPT))
        stolen = dataclasses.replace(message, resume_token=opened.resume_token)
        other, _ = await manager.open(stolen, "b")
        assert other is not session and other.tenant == "b"  # as if the token were unknown
        assert session.outbox is outbox and session.has_reader
        assert (await manager.open(stolen, "a"))[0] is session
        forged = opened.resume_token.replace(b'"a"', b'"b"')
        assert (await manager.open(dataclasses.replace(stolen, resume_token=forged), "b"))[0] is not session
        assert guests.held() == "abb"


async def test_resuming_needs_no_further_place():
    async with idle_server(max_sessions=1, a=TenantLimits(1)) as guests:
        session, opened = await guests.manager.open(Open(PROMPT, LONG), "a")
        # The server does not know yet that this reader is gone
        guests.manager.loop.attach(session, len(PROMPT))
        again = Open(PROMPT, LONG, resume_token=opened.resume_token)
        assert (await guests.manager.open(again, "a"))[0] is session


async def test_a_device_that_went_on_elsewhere_begins_anew_in_the_place_of_its_older_session():
    async with idle_server(max_sessions=1, a=TenantLimits(1)) as guests:
        manager = guests.manager
        session, opened = await manager.open(Open(PROMPT, LONG), "a")
        outbox = manager.loop.attach(session, len(PROMPT))
        back = Open(PROMPT, LONG, committed=(5, 6), resume_token=opened.resume_token)
        anew, _ = await manager.open(back, "a")
        assert anew is not session and manager.remembered == (anew,)
        assert anew.sequence.tokens == [*PROMPT, 5, 6] and anew.sequence.confirmed == len(PROMPT) + 2
        assert await outbox.get() is None, "the older stream ends"
