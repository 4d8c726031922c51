"""The page without a browser: an app with a view that a test makes, and a backend with tokens of every origin."""

import asyncio
import itertools
import json
from contextlib import asynccontextmanager
from dataclasses import replace

from edge_client.device.config import EdgeConfig
from edge_client.device.page_view import DeviceView
from http_api.app import build_app
from http_api.guard import Access
from http_api.page.views import PageView, Watching
from hw_profiles.sysfs import BoardState
from opensled.core.answer import Chunk
from opensled.core.errors import NotFound
from opensled.text.answer_text import AnswerText
from tests.devices import device_on
from tests.fake_backend import STATS, FakeBackend, through
from tests.fake_target import _Text
from tests.gated_target import SlowEngine
from tests.serving import GREEDY, serving

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CHAT, EVENTS, SWITCH = "/page/chat", "/page/events", "/page/devices"
ORIGINS = ("accepted", "accepted", "recovered", "bonus", "server", "loose")


class CountingView(PageView):
    """Shows how often it was looked at; remembers what was switched."""

    def __init__(self, error=None):
        self.error, self.looks, self.watchers, self.switched = error, 0, 0, []

    def watcher(self):
        self.watchers += 1
        return self.look

    def look(self):
        self.looks += 1
        if self.error:
            raise self.error
        return {"kind": "device", "looks": self.looks}

    def switch(self, tenant, device, drafting):
        if device == "unknown":
            raise NotFound(f"no device {device!r}")
        self.switched.append((tenant, device, drafting))


class SpeakingBackend(FakeBackend):
    """Says tokens of the tiny tokenizer, `ids` in turn, some at a time, each with an origin."""

    def __init__(self, ids, step=3, **options):
        super().__init__(**options)
        self.ids, self.step = tuple(ids), step

    async def _chunks(self, number, top):
        text, origins = AnswerText(self.tokenizer, ()), itertools.cycle(ORIGINS)
        for start in range(0, len(self.ids), self.step):
            if start >= self.fail_after:
                raise self.error
            await asyncio.sleep(0)
            ids, shown, *_ = text.commit(self.ids[start : start + self.step])
            yield Chunk(shown, ids, origins=tuple(itertools.islice(origins, len(ids))))
        while self.endless:
            await asyncio.sleep(0.001)
            yield Chunk(".", (9,), origins=("server",))
        yield Chunk(text.end()[1], (), self.reason, STATS)


def request(method, path, view=None, backend=None, access=Access(), ending=None, **options):
    """One request through the app without a socket; not for a stream without end."""
    app = build_app(backend or FakeBackend(), access, ending, view=view or CountingView())
    return through(app, method, path, "http://127.0.0.1:8411", **options)


def quick_looks(monkeypatch, period=0.01):
    """Looks come so many seconds apart, at pages that are made from now on."""
    plain = Watching.__init__
    monkeypatch.setattr(
        Watching, "__init__", lambda self, view, ending: plain(self, view, ending, period=period)
    )


def told(response):
    """The events of the page's chat."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in response.text.split("\n\n") if part]


class Reader:
    """One request for /page/events, read event by event; `async with`."""

    def __init__(self, app, path=EVENTS, method="GET", headers=()):
        self._app, self._gone = app, asyncio.Event()
        self._scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1:8411"), *headers], "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 8411),
        }  # fmt: skip
        self.status, self.events, self.ended, self.reads = None, [], False, asyncio.Event()
        self.reads.set()

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self._app(self._scope, self._receive, self._send))
        return self

    async def __aexit__(self, *error):
        self._gone.set()
        await asyncio.wait({self.task}, timeout=20)
        assert self.task.done(), "the work outlives its reader"
        self.task.cancel()

    async def _receive(self):
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.ended = not message.get("more_body", False)
        if message.get("body"):
            self.events.append(message["body"])
        await self.reads.wait()


LONG = replace(GREEDY, max_tokens=60)
HOT = BoardState(temperature_c=81.5, throttled=True, reasons=("thermal",), power_w=None, battery_percent=None)
CONFIG = EdgeConfig(server="hub.example:7411", device_name="<b>kitchen</b>", tls=True, offline="provisional")


@asynccontextmanager
async def page_of(config=CONFIG, parallel=1, board=HOT, **server):
    """Yields (device, its view, the server's manager)."""
    usual = {"engine": SlowEngine(num_blocks=200, context_length=400), "text": _Text()}
    async with serving(**{**usual, **server}) as (manager, address), device_on(address, parallel) as device:
        yield device, DeviceView(device, config, lambda: board), manager


def shown(view):
    """A look, as a browser reads it: no NaN, no infinity."""
    return json.loads(json.dumps(view.watcher()(), allow_nan=False))
