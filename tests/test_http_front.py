"""`opensled serve --http`: the server's own API, its keys and tenants, and the end of its answers."""

import asyncio
import json
import ssl
from dataclasses import replace

import httpx
import pytest

from http_api import waiting_room
from http_api.waiting_room import WaitingRoom
from opensled.core.errors import Overloaded, UsageError
from opensled.core.messages import Open
from tests.certificates import AUTHORITY, HERE, issued, written
from tests.http_serving import CONFIG, HI, asking, fake_engine, http_serving, of_tenants, said, words
from tests.loops import cancelled
from tests.scraping import samples
from tests.serving import GREEDY, finish, linked
from tests.system import until
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.server_metrics import metrics
from verify_server.options.serve_config import ServeConfig
from verify_server.start import command
from verify_server.start.command import clients

LONG = {**HI, "max_tokens": 3000, "stream": True}
WIDE = {"num_blocks": 3000, "context_length": 4000}


# -- answers ----------------------------------------------------------------------------------------------


async def test_every_route_answers_without_a_device():
    async with http_serving() as (_, _, address), asking(address) as client:
        assert await said(client) == words("Hi", 12)
        stop = words("Hi", 12)[2:5]
        assert await said(client, n=2, stop=stop) == words("Hi", 12).partition(stop)[0]
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7, "temperature": 0}
        told = (await client.post("/v1/chat/completions", json=chat)).json()
        assert told["choices"][0]["message"]["content"] == words("Hi", 7) and told["model"] == "fake"
        assert told["usage"]["opensled"]["server_decoded"] == told["usage"]["completion_tokens"] == 7
        response = {"input": "Hi", "max_output_tokens": 7, "temperature": 0}
        told = (await client.post("/v1/responses", json=response)).json()
        assert told["output"][0]["content"][0]["text"] == words("Hi", 7)
        told = (await client.post("/api/generate", json={"prompt": "Hi", "options": {"num_predict": 4}})).text
        assert "".join(json.loads(line)["response"] for line in told.splitlines()) == words("Hi", 4)
        for path in ("/v1/models", "/api/tags", "/health", "/readyz", "/status", "/openapi.json"):
            assert (await client.get(path)).status_code == 200


async def test_a_stream_has_the_text_and_the_log_probabilities_of_a_whole_answer():
    async with http_serving() as (_, _, address), asking(address) as client:
        whole = (await client.post("/v1/completions", json={**HI, "logprobs": 2})).json()["choices"][0]
        lines = (await client.post("/v1/completions", json={**HI, "logprobs": 2, "stream": True})).text
        events = [json.loads(line[6:]) for line in lines.split("\n\n") if line.startswith("data: {")]
        pieces = [event["choices"][0] for event in events]
        assert "".join(piece["text"] for piece in pieces) == whole["text"]
        told = [piece["logprobs"]["token_logprobs"] for piece in pieces if piece["logprobs"]]
        flat = [value for values in told for value in values]
        assert flat == whole["logprobs"]["token_logprobs"] and len(flat) == 12


@pytest.mark.parametrize("how", ["leaves", "stop string"])
async def test_who_stops_early_gives_the_place_back_at_once(how):
    """A session whose reader may come back is kept for a minute; a client of the API never does."""
    limits = SessionLimits(max_sessions=1, linger=60)
    async with (
        http_serving(limits=limits, engine=fake_engine(**WIDE)) as (manager, _, address),
        asking(address) as client,
    ):
        if how == "leaves":
            async with client.stream("POST", "/v1/completions", json=LONG) as response:
                assert response.status_code == 200
                await until(lambda: manager.remembered)
        else:
            assert await said(client, max_tokens=3000, stop=words("Hi", 9)[-2:])
        await until(lambda: not manager.remembered)
        assert await said(client) == words("Hi", 12)


async def test_a_server_that_drains_finishes_and_takes_nothing_new():
    async with http_serving() as (manager, _, address), asking(address) as client:
        manager.draining = True
        refused = await client.post("/v1/completions", json=HI)
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "1"
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/health")).status_code == 200


async def test_metrics_are_those_of_the_server_and_only_told_on_loopback():
    async with http_serving() as (manager, _, address), asking(address) as client:
        assert (await client.get("/metrics")).status_code == 404  # without figures
        figures = metrics(manager)
        async with http_serving(figures=figures) as (_, _, other), asking(other) as reader:
            await said(client)
            page = samples((await reader.get("/metrics")).text)
            assert page["tokens_committed_total",] == 12


# -- while all places are taken ------------------------------------------------------------------------------


async def held(client):
    """A stream that holds the one place, as a context."""
    response = await client.send(client.build_request("POST", "/v1/completions", json=LONG), stream=True)
    assert response.status_code == 200
    return response


QUEUED = {
    "/v1/completions": HI,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/messages": {"model": "fake", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 4}},
}


@pytest.mark.parametrize("path", QUEUED)
@pytest.mark.parametrize("ends", ["place", "drain", "time"])
async def test_a_request_waits_for_a_place_and_is_refused_when_there_will_be_none(path, ends):
    """It had been refused at once; who has no code for 429 lost it."""
    config = replace(CONFIG, http_wait=2 if ends == "time" else 60)
    options = {"limits": SessionLimits(max_sessions=1, linger=0.2), "engine": fake_engine(**WIDE)}
    async with http_serving(config, **options) as (manager, _, address), asking(address) as client:
        holder = await held(client)
        waiting = asyncio.ensure_future(client.post(path, json=QUEUED[path]))
        await until(lambda: manager.stats.refused["overloaded"] or waiting.done())
        assert not waiting.done()
        manager.draining = ends == "drain"
        if ends == "place":
            await holder.aclose()
        response = await waiting
        assert response.status_code == (200 if ends == "place" else 429), response.text
        assert ends == "place" or int(response.headers["Retry-After"]) >= 1
        await holder.aclose()


async def test_the_waiting_room_has_so_many_chairs_and_who_leaves_gives_one_back(monkeypatch):
    monkeypatch.setattr(waiting_room, "MOST", 1)
    room, full = WaitingRoom(60, lambda: ""), Overloaded("full", retry_after=30)

    async def wait():
        with room.entry() as wait:
            await wait(full)

    first = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await wait()
    await cancelled(first)  # its client has left
    second = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    assert not second.done()
    second.cancel()


# -- who may ask ------------------------------------------------------------------------------------------


async def test_a_key_is_the_token_of_a_tenant():
    async with http_serving(**of_tenants()) as (manager, _, address):
        async with asking(address) as stranger, asking(address, "token-c") as forger:
            for client in (stranger, forger):
                refused = await client.post("/v1/completions", json=HI)
                assert refused.status_code == 401 and refused.headers["WWW-Authenticate"] == "Bearer"
                assert refused.json()["error"]["code"] == "invalid_api_key"
                assert "--tokens" in refused.json()["error"]["message"]
            assert (await stranger.get("/api/tags")).json()["error"].startswith("an API key")
            assert (await stranger.get("/health")).status_code == 200
        assert manager.stats.refused["unauthorized"] == 3  # two completions, one list
        async with asking(address, "token-a") as client:
            assert await said(client) == words("Hi", 12)
        assert {session.tenant for session in manager.remembered} <= {"a"}


async def test_a_tenant_has_one_number_of_places_over_both_protocols():
    wide = {**of_tenants(), "engine": fake_engine(**WIDE)}
    async with http_serving(**wide) as (manager, grpc, address), linked(grpc, token="token-a") as link:
        over_grpc = link.connect()
        await over_grpc.send(Open((3, 1), replace(GREEDY, max_tokens=3000)))
        await over_grpc.receive()
        async with (
            asking(address, "token-a") as a,
            asking(address, "token-b") as b,
            a.stream("POST", "/v1/completions", json=LONG),
        ):
            await until(lambda: len(manager.remembered) == 2)
            full = await a.post("/v1/completions", json=HI)
            assert full.status_code == 429 and int(full.headers["Retry-After"]) >= 1
            assert full.json()["error"]["type"] == "rate_limit_error"
            assert "your tenant" in full.json()["error"]["message"]
            assert await said(b) == words("Hi", 12)
        await over_grpc.close()


async def test_answers_beside_drafting_devices_are_the_same():
    async with http_serving() as (_, grpc, address), asking(address) as client, linked(grpc) as link:

        async def device():
            return (await finish(link, Open((3, 1, 4), GREEDY)))[1]

        texts = await asyncio.gather(*(said(client) for _ in range(4)), device(), device())
        assert texts[:4] == [words("Hi", 12)] * 4 and texts[4] == texts[5]


async def test_a_client_certificate_names_the_tenant(tmp_path):
    """As over gRPC; without one of the authority's certificates there is not even a handshake."""
    server, kitchen = issued(AUTHORITY, HERE), issued(common_name="kitchen")
    contents = {"cert": server.cert, "key": server.key, "own": kitchen.cert, "own_key": kitchen.key}
    paths = {name: tmp_path / name for name in contents}
    for name, content in contents.items():
        paths[name].write_bytes(content)
    ca = written(tmp_path)
    config = replace(CONFIG, tls_cert=str(paths["cert"]), tls_key=str(paths["key"]), tls_client_ca=str(ca))
    known = ssl.create_default_context(cafile=str(ca))
    known.load_cert_chain(paths["own"], paths["own_key"])
    unknown = ssl.create_default_context(cafile=str(ca))
    options = {**of_tenants(), "tenants": Tenants(by_certificate=True), "engine": fake_engine(**WIDE)}
    async with http_serving(config, **options) as (manager, _, address):
        async with (
            httpx.AsyncClient(base_url=f"https://{address}", verify=known) as client,
            client.stream("POST", "/v1/completions", json=LONG) as response,
        ):
            assert response.status_code == 200
            assert {session.tenant for session in manager.remembered} == {"kitchen"}
        async with httpx.AsyncClient(base_url=f"https://{address}", verify=unknown) as stranger:
            with pytest.raises(httpx.TransportError):
                await stranger.post("/v1/completions", json=HI)


@pytest.mark.parametrize(
    ("headers", "code"),
    [({"host": "evil.example"}, "forbidden_host"), ({"origin": "https://evil.example"}, "forbidden_origin")],
)
async def test_web_pages_are_kept_out(headers, code):
    async with http_serving() as (manager, _, address), asking(address) as client:
        refused = await client.post("/v1/completions", json=HI, headers=headers)
        assert refused.status_code == 403 and refused.json()["error"]["code"] == code
        assert "opensled serve" in refused.json()["error"]["message"]
        assert not manager.stats.opened["new"]


async def test_an_invited_page_is_let_in():
    page = {"origin": "https://chat.example"}
    async with (
        http_serving(replace(CONFIG, cors_origin=page["origin"]), **of_tenants()) as (
            _,
            _,
            address,
        ),
        asking(address, "token-a") as client,
        asking(address) as stranger,
    ):
        answer = await client.post("/v1/completions", json=HI, headers=page)
        assert answer.headers["access-control-allow-origin"] == page["origin"]
        assert (await stranger.get("/v1/models", headers=page)).headers["access-control-allow-origin"]


# -- the start --------------------------------------------------------------------------------------------


def test_an_address_beyond_this_machine_wants_tls_and_known_clients():
    with pytest.raises(UsageError, match=r"--http 0\.0\.0\.0:8080 is reachable by other machines"):
        clients(ServeConfig(http="0.0.0.0:8080"), "127.0.0.1:7411")
    clients(ServeConfig(http="0.0.0.0:8080", insecure=True), "127.0.0.1:7411")
    clients(ServeConfig(http="127.0.0.1:8080"), "127.0.0.1:7411")


def test_an_answer_over_http_would_undo_padding():
    with pytest.raises(UsageError, match="--http and --pad-frames"):
        command.serve(ServeConfig(http="127.0.0.1:8080", pad_frames=True))
