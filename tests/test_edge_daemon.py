"""`opensled edge` as a daemon: its socket, and the end of the answers it is giving when it is told to stop."""

import asyncio
import json
import socket

import httpx
import pytest

from http_api import server as api_server
from http_api.app import build_app
from http_api.listening import listen
from http_api.server import ApiServer
from opensled.core.answer import Chunk
from tests.fake_backend import STATS, FakeBackend, chat, events, refusal


def test_chunks_of_a_stream_do_not_wait_for_acknowledgements():
    """Nagle's algorithm would hold the second one back for 40 ms."""
    with listen("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def at_once(server):
    """What a second signal does."""
    server.stop()
    server.stop()


def after_a_while(server):
    server.stop()


def stopped_midway(backend, stop, **fields):
    """The response to a request during which the daemon is told to stop; `ending` as it is then."""
    ending = asyncio.Event()

    async def scenario(listener):
        server = ApiServer(build_app(backend, ending=ending), ending)
        running = asyncio.ensure_future(server.run(listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"
        async with httpx.AsyncClient(timeout=60) as client:
            asking = asyncio.ensure_future(client.post(url, json=chat(**fields)))
            while not backend.tasks:
                await asyncio.sleep(0)
            stop(server)
            response = await asking
        await asyncio.wait_for(running, 20)
        return response

    with listen("127.0.0.1:0") as listener:
        return asyncio.run(scenario(listener)), ending.is_set()


@pytest.mark.parametrize("stop", [at_once, after_a_while])
@pytest.mark.parametrize("streamed", [True, False])
def test_answers_that_do_not_finish_end_by_an_error_and_let_the_server_know(stop, streamed, monkeypatch):
    """A cut connection would tell the reader nothing, and the server would keep the sequence for a minute."""
    monkeypatch.setattr(api_server, "GRACE", 0.05 if stop is after_a_while else 60.0)
    backend = FakeBackend(endless=True)
    response, _ = stopped_midway(backend, stop, stream=streamed)
    assert backend.closed == 1
    if streamed:
        last = response.text.split("\n\n")[-2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "unreachable"
    else:
        assert refusal(response, 503)["code"] == "unreachable" and response.headers["retry-after"] == "1"


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_that_can_be_cut_ends_with_the_text_so_far(streamed):
    """Its last chunk has what was held back, and nothing comes behind it."""

    class Cut(FakeBackend):
        async def _chunks(self, number, top):
            yield Chunk("Hel", (1,), cut=lambda: Chunk("", ()).finish("length", STATS, "", "lo"))
            await asyncio.Event().wait()

    response, _ = stopped_midway(Cut(), at_once, stream=streamed)
    if streamed:
        *chunks, done = events(response)
        choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
        assert "".join(each["delta"].get("content") or "" for each in choices) == "Hello" and done == "[DONE]"
    else:
        choices = response.json()["choices"]
        assert choices[0]["message"]["content"] == "Hello"
    assert choices[-1]["finish_reason"] == "length" and response.status_code == 200


def test_an_answer_that_finishes_in_time_is_whole():
    response, ended = stopped_midway(FakeBackend(words=("Hello",) * 300), after_a_while)
    assert response.json()["choices"][0]["message"]["content"] == "Hello" * 300 and not ended
