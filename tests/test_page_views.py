"""Who watches the page's looks, how many at once, and what switches a device's drafts."""

import asyncio
import json

import httpx
import pytest

from http_api.app import build_app
from http_api.page.views import MAX_BYTES, MAX_WATCHERS
from tests.fake_backend import FakeBackend, refusal
from tests.page_world import CHAT, EVENTS, SWITCH, CountingView, Reader, quick_looks, request
from tests.system import until

# -- who watches --------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch):
    """Looks come a hundred times as fast."""
    quick_looks(monkeypatch)


async def test_looks_come_one_a_period(monkeypatch):
    quick_looks(monkeypatch, period=2.0)
    view = CountingView()
    async with Reader(build_app(FakeBackend(), view=view)) as reader:
        await until(lambda: len(reader.events) == 1)
        await asyncio.sleep(0.3)  # much less than a period
        assert view.looks == 1 and reader.events == [b'data: {"kind":"device","looks":1}\n\n']
        await until(lambda: len(reader.events) == 2)
    assert view.watchers == 1 and not reader.ended


async def test_a_stream_of_looks_is_kept_by_no_cache():
    ending = asyncio.Event()
    ending.set()
    transport = httpx.ASGITransport(build_app(FakeBackend(), ending=ending, view=CountingView()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        reply = await client.get(EVENTS)
    assert reply.headers["cache-control"] == "no-store" and "content-length" not in reply.headers


async def test_so_many_may_watch_also_if_they_come_at_once(quick):
    view, ending = CountingView(), asyncio.Event()
    app = build_app(FakeBackend(), ending=ending, view=view)
    readers = [Reader(app) for _ in range(3 * MAX_WATCHERS)]
    for reader in readers:
        await reader.__aenter__()
    await until(lambda: all(reader.status for reader in readers))
    counts = [sum(reader.status == status for reader in readers) for status in (200, 429)]
    assert counts == [MAX_WATCHERS, 2 * MAX_WATCHERS] and view.watchers == MAX_WATCHERS
    leaving = next(reader for reader in readers if reader.status == 200)
    await leaving.__aexit__()
    async with Reader(app) as late:
        await until(lambda: late.events)  # its place is free
    ending.set()
    await until(lambda: all(reader.ended for reader in readers if reader is not leaving))
    for reader in readers:
        await reader.__aexit__()


async def test_a_reader_who_takes_nothing_gets_no_further_look(quick):
    view = CountingView()
    app = build_app(FakeBackend(), view=view)
    async with Reader(app) as reader:
        reader.reads.clear()
        await until(lambda: reader.events)
        async with Reader(app) as other:
            await until(lambda: len(other.events) > 5)
        assert len(reader.events) == 1


async def test_looks_end_with_the_process(quick):
    ending = asyncio.Event()
    app = build_app(FakeBackend(), ending=ending, view=CountingView())
    async with Reader(app) as reader:
        await until(lambda: reader.events)
        ending.set()
        await until(lambda: reader.ended)
    async with Reader(app) as late:
        await until(lambda: late.ended)
        assert late.status == 200 and not late.events


async def test_a_view_that_fails_ends_its_reader_and_nobody_else(quick):
    view = CountingView()
    app = build_app(FakeBackend(), view=view)
    async with Reader(app) as reader:
        await until(lambda: reader.events)
        view.error = ZeroDivisionError("a bug")
        await until(reader.task.done)
        assert isinstance(reader.task.exception(), ZeroDivisionError)  # logged by the server
    view.error = None
    readers = [Reader(app) for _ in range(MAX_WATCHERS)]  # all places are free
    for one in readers:
        await one.__aenter__()
    await until(lambda: all(one.events for one in readers))
    for one in readers:
        await one.__aexit__()


def test_a_head_request_takes_no_place():
    view = CountingView()
    reply = request("HEAD", EVENTS, view)
    assert reply.status_code == 200 and not view.watchers and not reply.content


# -- the switch ---------------------------------------------------------------------------------------------------


def switched(body, view=None, **headers):
    """The reply to a switch of this body, and what was switched."""
    view = view or CountingView()
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"content-type": "application/json", **headers}
    return request("POST", SWITCH, view, content=content, headers=named), view.switched


def test_a_switch():
    for drafting in (True, False):
        reply, done = switched({"tenant": "a", "device": "kitchen", "drafting": drafting})
        assert reply.json() == {"drafting": drafting} and done == [("a", "kitchen", drafting)]
    assert refusal(switched({"device": "unknown", "drafting": True})[0], 404)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"device": 1, "drafting": True}, "device"),
        ({"tenant": ["a"], "device": "a", "drafting": True}, "tenant"),
        ({"device": "a", "drafting": "false"}, "drafting"),
        ({"device": "a", "drafting": 2}, "drafting"),
        ({"device": "a", "drafting": None}, "drafting"),
        ({"device": "a"}, "drafting"),
        ({"device": "\ud800", "drafting": True}, "device"),
        ({"device": "a", "drafting": True, "more": 1}, "more"),
    ],
)
def test_a_switch_of_the_wrong_type_is_refused_by_name(body, field):
    reply, done = switched(body)
    assert refusal(reply)["param"] == field and not done


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"{", b"\xff", b"[" * 4000, b'{"a": ' + b"9" * 4080 + b"}"]
)
def test_a_switch_that_is_no_object_is_refused(body):
    reply, done = switched(body)
    assert refusal(reply) and not done


def test_a_switch_has_a_bound():
    long = {"device": "a" * MAX_BYTES, "drafting": True}
    reply, done = switched(long)
    error = refusal(reply, 413)
    assert "larger than 4 KiB:" in error["message"] and not done
    assert refusal(switched({**long, "device": "a" * (1 << 20)})[0], 413)
    assert switched({"device": "a" * (MAX_BYTES - 100), "drafting": True})[0].status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
def test_a_switch_that_any_page_may_send_is_refused(kind):
    reply, done = switched({"device": "a", "drafting": True}, **{"content-type": kind})
    assert refusal(reply, 415) and not done


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "a\x00\x1b[2J\r\nb", "\u202e\u2066", "'\"`${x}"]
)
def test_a_name_is_only_a_name(name):
    reply, done = switched({"device": name, "drafting": False})
    assert reply.status_code == 200 and done == [("", name, False)]
    assert reply.headers["content-type"] == "application/json"


def test_a_switch_is_posted():
    assert request("GET", SWITCH).status_code == 405 and request("POST", EVENTS).status_code == 405
    assert request("GET", CHAT).status_code == 405
