"""Each response has an id: the client's own if it is a plain one, and the log has it where a request fails."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from http_api.app import build_app
from http_api.exchange import HEADER, Exchanges
from tests.fake_backend import FakeBackend, chat


def answer(path, body=None, headers=None, backend=None):
    async def request():
        app = Exchanges(build_app(backend or FakeBackend()))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://edge") as client:
            return await client.request("POST" if body else "GET", path, json=body, headers=headers)

    return asyncio.run(request())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", chat(), 200), ("/v1/chat/completions", chat(stream=True), 200),
        ("/v1/chat/completions", chat(n=0), 400), ("/nowhere", None, 404), ("/api/tags", None, 200),
        ("/v1/chat/completions/", chat(), 307),
    ],
)  # fmt: skip
def test_each_response_has_an_id_of_its_own(path, body, status):
    ids = set()
    for _ in range(2):
        response = answer(path, body)
        assert response.status_code == status
        ids.add(response.headers[HEADER])
    assert len(ids) == 2 and all(id.startswith("req_") for id in ids)


def test_a_client_s_own_id_is_kept():
    assert answer("/health", headers={HEADER: "trace-1.a/b"}).headers[HEADER] == "trace-1.a/b"


@pytest.mark.parametrize("id", ["", "a b", "x" * 129, "\u00e9".encode(), "<script>"])
def test_an_id_that_is_none_is_replaced(id):
    assert answer("/health", headers={HEADER: id}).headers[HEADER].startswith("req_")


def test_a_failure_is_in_the_log_with_its_id(caplog):
    broken = FakeBackend(error=RuntimeError("broken"), fail_after=0)
    response = answer("/v1/chat/completions", chat(), {HEADER: "mine"}, broken)
    assert (response.status_code, response.headers[HEADER]) == (500, "mine")
    assert "request mine failed" in caplog.text
