"""What a device shows on its page, with real answers over a fake target; and requests that want no drafts."""

import asyncio
import json
from contextlib import aclosing

import httpx
import pytest

from edge_client.device.config import EdgeConfig
from edge_client.device.telemetry import Telemetry
from http_api.app import build_app
from http_api.page.views import MAX_BYTES, MAX_WATCHERS
from opensled.core.answer import Stats, Task
from opensled.core.errors import Unsupported
from tests.devices import read
from tests.fake_backend import HELLO, FakeBackend, call, chat, refusal
from tests.fakes import FakeEngine, continuation
from tests.page_world import (
    CHAT,
    EVENTS,
    LONG,
    SWITCH,
    CountingView,
    Reader,
    page_of,
    quick_looks,
    request,
    shown,
    told,
)
from tests.serving import GREEDY, PROMPT
from tests.system import until


async def test_before_the_first_answer_nothing_is_claimed():
    async with page_of() as (device, view, _):
        look = shown(view)
        assert look["kind"] == "device" and look["name"] == "<b>kitchen</b>" and look["model"] == "fake"
        assert look["server"] == {
            "address": "hub.example:7411", "away": False, "refusal": "", "tls": True, "opening_s": None,
            "reopened": 0,
        }  # fmt: skip
        assert look["offline"] == "provisional" and look["drafter"] == "oracle" and not look["images"]
        assert look["drafters"] == {"busy": 0, "all": 1} and look["context"] == 400
        assert look["draft"]["gain"] is look["draft"]["drafted_rate"] is None
        assert look["counts"]["answers"] == look["counts"]["drafts"] == look["counts"]["tokens"] == 0
        assert look["board"] == {
            "temperature_c": 81.5, "throttled": True, "reasons": ["thermal"], "power_w": None,
            "battery_percent": None, "discharging": False,
        }  # fmt: skip
        assert {"drafting", "words", "length"} <= set(look["draft"]) and look["draft"]["words"]
        device.watch.away = True
        assert shown(view)["server"]["away"]
        assert look["possible"] == ["accepted", "recovered", "bonus", "server"] and len(look["examples"]) == 3
        device.drafter_name = "none"
        assert shown(view)["possible"] == ["server"]


@pytest.mark.parametrize(
    ("changes", "encrypted"), [({}, False), ({"tls_ca": "ca.pem"}, True), ({"client_cert": "a.pem"}, True)]
)
async def test_whether_the_link_is_encrypted(changes, encrypted):
    async with page_of(EdgeConfig(**changes)) as (_, view, _):
        assert shown(view)["server"]["tls"] is encrypted


async def test_what_drafts_gain_is_measured():
    async with page_of() as (device, view, _):
        await read(device, Task(PROMPT, LONG))
        look = shown(view)
        assert look["counts"]["answers"] == 1 and look["counts"]["tokens"] == 60
        counts = look["counts"]
        assert counts["drafts"] and counts["drafted"] >= counts["accepted"] == sum(
            counts["accepted_per_position"]
        )
        assert look["draft"]["drafted_rate"] > 0 and look["draft"]["plain_rate"] is None
        assert look["server"]["opening_s"] > 0
        await read(device, Task(PROMPT, LONG, drafts=False))
        draft = shown(view)["draft"]
        assert draft["gain"] is None and draft["gain_words"].startswith("not enough yet: 59 of 200")
        for drafts in (True, False) * 3:
            await read(device, Task(PROMPT, LONG, drafts=drafts))
        draft = shown(view)["draft"]
        assert draft["gain"] == pytest.approx(draft["drafted_rate"] / draft["plain_rate"])


async def test_a_drafter_at_work_is_counted():
    async with page_of() as (device, view, _), aclosing(device.answer(Task(PROMPT, LONG))) as chunks:
        await anext(chunks)
        assert shown(view)["drafters"] == {"busy": 1, "all": 1}


def test_rates_stand_on_what_is_known():
    telemetry = Telemetry()

    def finished(tokens, seconds, rounds=0, local=0, of_rounds=0):
        stats = Stats(
            3,
            tokens,
            rounds=rounds,
            round_tokens=of_rounds,
            local_tokens=local,
            first_token=1.0,
            seconds=1.0 + seconds,
        )
        telemetry.finish(stats, "eos")

    def rates():
        return telemetry.rate_drafted.ratio, telemetry.rate_plain.ratio

    finished(1, 5, rounds=1, of_rounds=1)  # of one token nothing is measured
    finished(51, 1, local=51)  # nor of what nobody verified
    assert rates() == (0, 0)
    finished(101, 5, rounds=9, of_rounds=90)
    assert rates() == (20.0, 0)
    finished(51, 10)
    assert rates() == (20.0, 5.0)
    # The server wrote nearly all of it: neither with drafts nor without
    finished(101, 1, rounds=2, of_rounds=6)
    assert rates() == (20.0, 5.0)
    for _ in range(400):
        finished(11, 1)  # the server has become faster
    assert telemetry.rate_plain.ratio == pytest.approx(10.0, rel=0.01)
    finished(11, 0, rounds=1, of_rounds=11)  # all at once: no division by zero
    assert telemetry.rate_drafted.ratio > 0
    telemetry.forget_rates()
    assert rates() == (0, 0)


async def test_a_device_has_no_switch_for_others():
    async with page_of() as (_, view, _):
        with pytest.raises(Unsupported, match="with each question"):
            view.switch("", "bath", False)


# -- without drafts -----------------------------------------------------------------------------------------------


async def test_an_answer_without_drafts_is_the_same_text():
    async with page_of(engine=FakeEngine(num_blocks=200)) as (device, view, manager):
        plain = await read(device, Task(PROMPT, GREEDY, drafts=False))
        assert [id for chunk in plain for id in chunk.token_ids] == continuation(PROMPT, 20)
        assert {origin for chunk in plain for origin in chunk.origins} == {"server"}
        stats = plain[-1].stats
        assert stats.drafted == stats.rounds == 0 and stats.server_decoded == 20
        assert manager.loop.machine.stats.drafts.drafts == 0 and shown(view)["drafters"]["busy"] == 0


async def test_the_field_of_a_request():
    async with page_of() as (device, view, _):
        transport = httpx.ASGITransport(build_app(device, view=view))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            body = {"messages": HELLO, "temperature": 0, "max_tokens": 30}
            texts, drafted = [], []
            for drafts in (True, False):
                asked = {**body, "opensled": {"drafts": drafts}}
                whole = (await client.post("/v1/chat/completions", json=asked)).json()
                news = told(await client.post(CHAT, json=asked))
                pieces = [piece for event in news for piece in event["pieces"]]
                texts += [whole["choices"][0]["message"]["content"], "".join(text for text, _ in pieces)]
                usages = whole["usage"]["opensled"], news[-1]["usage"]["opensled"]
                drafted += [usage["drafted"] > 0 for usage in usages]
                assert ("server" in {origin for _, origin in pieces}) or drafts
                assert drafts or {origin for _, origin in pieces} == {"server"}
            assert len(set(texts)) == 1 and texts[0] and drafted == [True, True, False, False]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat()),
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/responses", {"input": "Hi"}),
        ("/api/chat", {"messages": HELLO}),
        ("/api/generate", {"prompt": "Hi"}),
    ],
)
def test_whoever_does_not_ask_gets_drafts(path, body):
    backend = FakeBackend()
    assert call(backend, path, body).status_code == 200 and backend.tasks[0].drafts
    if path.startswith("/v1/"):
        assert call(backend, path, {**body, "opensled": {"drafts": False, "pace": 3}}).status_code == 200
        assert not backend.tasks[1].drafts and backend.tasks[1].pace == 3
        assert call(backend, path, {**body, "opensled": {"drafts": 2}}).status_code == 400


async def test_the_draft_model_alone_needs_its_drafter():
    """Whoever asks for the draft model itself is not sent to an empty one by a field about drafts."""
    async with page_of() as (device, _, _):
        asked = []

        async def begin(session, task):
            asked.append((task.alone, device.drafters_busy))
            raise RuntimeError("far enough")

        device._begin = begin
        for alone in (True, False):
            with pytest.raises(RuntimeError, match="far enough"):
                await read(device, Task(PROMPT, GREEDY, alone=alone, drafts=False))
        assert asked == [(True, 1), (False, 0)]
        await until(lambda: device.drafters_busy == 0)


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


@pytest.mark.parametrize(
    "name", ["kitchen", "<script>alert(1)</script>", "a\x00\x1b[2J\r\nb", "\u202e\u2066", "'\"`${x}"]
)
def test_a_switch(name):
    for drafting in (True, False):
        reply, done = switched({"tenant": "a", "device": name, "drafting": drafting})
        assert reply.json() == {"drafting": drafting} and done == [("a", name, drafting)]
        assert reply.headers["content-type"] == "application/json"
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
    assert "larger than 4 KiB:" in refusal(reply, 413)["message"] and not done
    assert refusal(switched({**long, "device": "a" * (1 << 20)})[0], 413)
    assert switched({"device": "a" * (MAX_BYTES - 100), "drafting": True})[0].status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"])
def test_a_switch_that_any_page_may_send_is_refused(kind):
    reply, done = switched({"device": "a", "drafting": True}, **{"content-type": kind})
    assert refusal(reply, 415) and not done


def test_a_switch_is_posted():
    assert request("GET", SWITCH).status_code == 405 and request("POST", EVENTS).status_code == 405
    assert request("GET", CHAT).status_code == 405
