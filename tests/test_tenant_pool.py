"""Threads for strangers' work: one of a tenant at a time, and nobody held up by another tenant."""

import asyncio
import threading
from unittest.mock import Mock

import pytest

from opensled.core.errors import InvalidRequest, Overloaded
from opensled.core.messages import Open
from opensled.process.fork_server import STOP
from tests.fakes import HeldText
from tests.serving import GREEDY, serving
from tests.system import until
from verify_server.access import tenant_pool
from verify_server.access.tenant_pool import TenantPool

TEXT = Open("some text", GREEDY)


@pytest.fixture
def gate():
    made = threading.Event()
    yield made
    made.set()


async def test_a_tenant_has_one_thread_and_others_have_theirs(gate):
    pool, entered = TenantPool("test", 2), []

    def work(name):
        entered.append(name)
        assert gate.wait(30)
        return name

    first = [asyncio.ensure_future(pool.run("a", lambda: work("a"))) for _ in range(5)]
    await until(lambda: entered)
    assert await asyncio.wait_for(pool.run("b", lambda: "b"), 20) == "b"
    assert entered == ["a"]
    gate.set()
    assert await asyncio.gather(*first) == ["a"] * 5
    pool.close()


async def test_errors_reach_the_caller_and_free_the_thread():
    pool = TenantPool("test", 1)
    for _ in range(3):
        with pytest.raises(InvalidRequest, match="no"):
            await pool.run("a", Mock(side_effect=InvalidRequest("no")))
    assert await pool.run("b", lambda: 1) == 1
    pool.close()


async def test_cancelling_sets_stop_and_keeps_the_thread_counted_until_it_ends(gate):
    pool, stops = TenantPool("test", 1), []

    def work():
        stops.append(STOP.get())
        assert gate.wait(30)

    running = asyncio.ensure_future(pool.run("a", work))
    waiting = asyncio.ensure_future(pool.run("a", work))
    await until(lambda: stops)
    stopped = threading.Event()
    with stops[0].calling(stopped.set):
        assert not stopped.is_set()
        for task in (waiting, running):
            task.cancel()
        await asyncio.gather(running, waiting, return_exceptions=True)
    assert stopped.is_set() and running.cancelled() and waiting.cancelled()
    other = asyncio.ensure_future(pool.run("b", lambda: 2))
    done, _ = await asyncio.wait([other], timeout=0.05)
    assert not done, "the only thread is still taken"
    gate.set()
    assert await other == 2 and len(stops) == 1
    pool.close()


async def test_what_waits_of_one_tenant_is_bounded(gate, monkeypatch):
    monkeypatch.setattr(tenant_pool, "MAX_WAITING", 3)
    pool = TenantPool("grammar", 1)
    held = [asyncio.ensure_future(pool.run("a", lambda: gate.wait(30))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="grammar") as refusal:
        await pool.run("a", lambda: 1)
    assert refusal.value.retry_after > 0
    gate.set()
    await asyncio.gather(*held)
    assert await pool.run("a", lambda: 1) == 1
    pool.close()


async def test_a_stuck_tokenizer_holds_up_its_tenant_alone():
    """Before, six stuck compiles filled the one executor in which all prompts were tokenized."""
    text = HeldText()
    async with serving(text=text) as (manager, _):
        stuck = [asyncio.ensure_future(manager.inputs.prompt_ids(TEXT, "attacker")) for _ in range(40)]
        await until(lambda: text.waiting == 2)
        victim = asyncio.ensure_future(manager.inputs.prompt_ids(TEXT, "victim"))
        await until(lambda: text.waiting == 3)
        text.go.set()
        assert await victim
        await asyncio.gather(*stuck)
