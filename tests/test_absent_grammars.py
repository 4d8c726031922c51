"""Guided answers whose reader has gone hold the memory of their grammars: they give way to answers that are read."""

import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from opensled.core.errors import Overloaded
from opensled.core.messages import Failure, Guide, Open, Opened, SamplingParams
from tests.serving import finish, linked, serving
from tests.system import until
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.text.guide import GROWTH, GrammarMemory

TENANTS = Tenants(tuple((f"token-{name}", name) for name in "abcdef"))
# No answer ends before its last token.
GUIDE = Guide(json_schema=json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 1000}))
LONG, SHORT = SamplingParams(temperature=0, max_tokens=900), SamplingParams(temperature=0, max_tokens=40)
EACH = 2 * GROWTH  # bytes of a grammar with its matcher, as its fork is made to say
OF_ONE, OF_ALL = 4 * EACH, 16 * EACH


@pytest.fixture(scope="module")
def tiny():
    return ENGINES.get("torch")(ServeConfig(model="tiny", numerics="fast", kv_tokens=16_384, threads=1))


@asynccontextmanager
async def served(tiny, of_one=OF_ONE, of_all=OF_ALL):
    """Yields (manager, address) of a server whose sessions stay for a minute without a reader."""
    limits = SessionLimits(max_sessions=64, max_draft=8, tenants=TENANTS)
    async with serving(TENANTS, limits=limits, engine=tiny.engine, text=tiny.text) as (manager, address):
        guides = manager.inputs._guides
        guides.memory = GrammarMemory(of_one, of_all)
        guides._forks.ask = lambda question: json.dumps({"bytes": GROWTH}).encode()
        yield manager, address


@pytest.fixture
def opening(tiny):
    return Open(tiny.text.encode("A note: "), LONG, guide=GUIDE)


async def begun(link, opening):
    """A guided answer under way, and what it was opened with."""
    stream = link.connect()
    await stream.send(opening)
    opened = await stream.receive()
    if isinstance(opened, Failure):
        raise opened.error()
    assert isinstance(opened, Opened)
    return stream, opened


async def left_behind(manager, address, tenant, opening, count):
    """`count` guided answers of a tenant, whose readers vanish one after the other; how many of them were refused."""
    refused = 0
    for _ in range(count):
        async with linked(address, token=f"token-{tenant}") as link:
            try:
                stream, _ = await begun(link, opening)
            except Overloaded:
                refused += 1
                continue
            await stream.close()
        await until(lambda: not any(session.has_reader for session in manager.remembered))
    return refused


async def test_those_of_a_tenant_do_not_refuse_its_own_new_answer(tiny, opening):
    async with served(tiny) as (manager, address):
        assert await left_behind(manager, address, "a", opening, 12) == 0
        assert len(manager.remembered) == 4, "only as many as must give way"
        async with linked(address, token="token-a") as link:
            assert (await finish(link, replace(opening, params=SHORT)))[1]


async def test_those_of_five_tenants_do_not_refuse_a_sixth(tiny, opening):
    async with served(tiny, of_all=5 * OF_ONE) as (manager, address):
        for tenant in "abcde":
            assert not await left_behind(manager, address, tenant, opening, 5)
        before = {session.tenant for session in manager.remembered}
        async with linked(address, token="token-f") as link, AsyncExitStack() as ends:
            for _ in range(3):
                stream, _ = await begun(link, opening)
                ends.push_async_callback(stream.close)
        assert before == set("abcde") == {session.tenant for session in manager.remembered} - {"f"}


async def test_a_tenant_with_more_pushes_out_its_own_and_no_smaller_one(tiny, opening):
    async with served(tiny, of_one=OF_ALL, of_all=OF_ONE) as (manager, address):
        assert not await left_behind(manager, address, "b", opening, 1)
        assert not await left_behind(manager, address, "a", opening, 6)
        assert [session.tenant for session in manager.remembered].count("b") == 1


async def test_answers_that_are_read_do_not_give_way(tiny, opening):
    async with served(tiny) as (manager, address), AsyncExitStack() as ends:
        held = 0
        with pytest.raises(Overloaded, match="does not fit beside those of running answers"):
            while held < 5:
                link = await ends.enter_async_context(linked(address, token="token-a"))
                stream, _ = await begun(link, opening)
                ends.push_async_callback(stream.close)
                held += 1
        assert held == 4 == len(manager.remembered)


async def test_a_plain_answer_without_a_reader_stays(tiny, opening):
    """It holds no grammar: to forget it would make no room."""
    async with served(tiny) as (manager, address):
        assert not await left_behind(manager, address, "a", replace(opening, guide=None), 1)
        [plain] = manager.remembered
        await left_behind(manager, address, "a", opening, 6)
        assert plain in manager.remembered


async def test_who_comes_back_reads_on(tiny, opening):
    """The session is forgotten, and what its reader knows of it begins another one: the text is the same."""
    async with served(tiny) as (manager, address):
        begins = replace(opening, params=SHORT)
        async with linked(address, token="token-a") as link:
            _, whole = await finish(link, begins)
            stream, opened = await begun(link, begins)
            known: list[int] = []
            while not known:
                known += getattr(await stream.receive(), "tokens", ())
            await stream.close()
        [session] = manager.loop.machine.sessions.values()
        await left_behind(manager, address, "a", opening, 5)
        assert session not in manager.remembered
        again = replace(
            begins, resume_token=opened.resume_token, noise_key=opened.noise_key, committed=tuple(known)
        )
        async with linked(address, token="token-a") as link:
            stream, opened = await begun(link, again)
            while True:
                verdict = await stream.receive()
                known += getattr(verdict, "tokens", ())
                if getattr(verdict, "finish_reason", ""):
                    break
            await stream.close()
        assert known == whole and len(known) > 1
