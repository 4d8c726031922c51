"""Each response has an id: the client's own if it is a plain one; and the log has one line for each request."""

import logging

import pytest

from http_api.app import build_app
from http_api.exchange import HEADER, LONGEST_PATH, Exchanges
from opensled.core.messages import Open
from tests.fake_backend import FakeBackend, chat, through
from tests.http_serving import asking, http_serving
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked, serving
from verify_server.access.security import Tenants

SECRET = "the kitchen password is swordfish"


def answer(path, body=None, headers=None, backend=None):
    app = Exchanges(build_app(backend or FakeBackend()))
    return through(app, "POST" if body else "GET", path, json=body, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", chat(), 200), ("/v1/chat/completions", chat(stream=True), 200),
        ("/v1/chat/completions", chat(n=0), 400), ("/nowhere", None, 404), ("/api/tags", None, 200),
        ("/v1/chat/completions/", chat(), 200),
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


# -- the line of a request --------------------------------------------------------------------------------


def lines(caplog):
    """What the log says of requests: the message, and its facts."""
    found = [
        record
        for record in caplog.records
        if record.name == "http_api.exchange" and record.levelname == "INFO"
    ]
    return [(record.getMessage(), vars(record)) for record in found]


async def test_a_request_has_one_line_with_its_facts_and_no_text(caplog):
    caplog.set_level(logging.INFO, "http_api.exchange")
    tenants = Tenants((("token-a", "alice"),))
    async with http_serving(tenants=tenants) as (_, _, address), asking(address, "token-a") as client:
        for stream in (False, True):
            body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 6, "stream": stream}
            headers = {HEADER: f"mine-{stream}"}
            reply = await client.post("/v1/chat/completions?key=swordfish", json=body, headers=headers)
            assert reply.status_code == 200
        assert (await client.post("/v1/completions", json={"prompt": SECRET, "n": 0})).status_code == 400
        assert (await client.get("/v1/models", headers={"Authorization": "Bearer wrong"})).status_code == 401
    chats, bad, stranger = lines(caplog)[:2], *lines(caplog)[2:]
    for (message, facts), stream in zip(chats, (False, True), strict=True):
        assert message == "POST /v1/chat/completions 200"
        assert (
            facts["path"] == "/v1/chat/completions" and facts["status"] == 200 and facts["tenant"] == "alice"
        )
        assert facts["completion_tokens"] == 6 and facts["prompt_tokens"] > 10 and facts["seconds"] > 0
        assert facts["request_id"] == f"mine-{stream}" and facts["client"] == "127.0.0.1"
    assert bad[0] == "POST /v1/completions 400" and bad[1]["code"] == "invalid_request"
    assert stranger[1]["status"] == 401
    assert not {"tenant", "prompt_tokens", "completion_tokens"} & stranger[1].keys()
    assert "swordfish" not in caplog.text and "swordfish" not in str(lines(caplog))


def test_probes_and_scrapes_have_no_line(caplog):
    caplog.set_level(logging.INFO, "http_api.exchange")
    for path in ("/livez", "/readyz", "/healthz", "/health", "/metrics"):
        answer(path)
    assert lines(caplog) == []
    answer("/status")
    assert [message for message, _ in lines(caplog)] == ["GET /status 200"]


def test_a_path_in_the_log_is_short_and_harmless(caplog):
    caplog.set_level(logging.INFO, "http_api.exchange")
    answer("/" + "x" * 5000)
    ((_, facts),) = lines(caplog)
    assert len(facts["path"]) == LONGEST_PATH


async def test_a_stream_of_a_device_has_a_line(caplog):
    caplog.set_level(logging.INFO, "verify_server.front.stream_record")
    async with serving() as (_, address), linked(address) as link:
        await finish(link)
        await first_reply(link, Open((10**6,), GREEDY))
    found = [vars(record) for record in caplog.records if record.name == "verify_server.front.stream_record"]
    assert [each["end"] for each in found] == ["length", "invalid_request"]
    assert found[0]["prompt_tokens"] == len(PROMPT) and found[0]["completion_tokens"] == GREEDY.max_tokens
    assert found[0]["tenant"] == "local" and found[0]["path"] == "grpc"
