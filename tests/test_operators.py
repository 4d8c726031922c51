"""The page of a real server and of a real gateway: who sees the fleet, who may switch devices, and who may only ask."""

import asyncio
import json
import time
from dataclasses import replace

import pytest

from opensled.core.errors import NotFound, UsageError
from tests.fakes import OracleDrafter
from tests.http_serving import CONFIG, HI, TWO, asking, http_serving, of_tenants, raw, said
from tests.page_world import CHAT, EVENTS, HTML, SWITCH
from tests.replicas import api, until_ready
from tests.serving import GREEDY, linked
from tests.system import ask
from verify_server.access.client_limits import ClientLimits, Rate
from verify_server.access.clients import GUESS_S
from verify_server.front.operators import Operators, operators

KITCHEN = {"tenant": "local", "device": "kitchen", "drafting": False}
BEYOND = {"host": "192.0.2.1:8411"}
QUESTION = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}


@pytest.fixture
def keyed(tmp_path):
    """A configuration with an operator's key in a file."""
    (tmp_path / "keys").write_text("# us\noperator-1\noperator-2\n")
    (tmp_path / "keys").chmod(0o600)
    return replace(CONFIG, operator_keys=str(tmp_path / "keys"))


async def first_look(client, **headers):
    """The status of a request for looks, and the first one or the error."""
    async with client.stream("GET", EVENTS, headers=headers) as response:
        if response.status_code != 200:
            return response.status_code, json.loads(await response.aread())["error"]
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                return 200, json.loads(line[6:])
    raise AssertionError("no look")


async def switch(client, headers=None, **fields):
    return await client.post(SWITCH, json={**KITCHEN, **fields}, headers=headers or {})


async def drafted(address, token="", device="kitchen"):
    """A device answers with drafts."""
    async with linked(address, token=token) as link:
        await ask(link, (3, 1, 4), OracleDrafter(0.9), GREEDY, device=device)


# -- one server ---------------------------------------------------------------------------------------------------


async def test_on_this_machine_everybody_is_an_operator():
    async with http_serving() as (manager, grpc, address), asking(address) as client:
        shown = await client.get("/", headers=HTML)
        assert "<!doctype html>" in shown.text and "content-security-policy" in shown.headers
        await drafted(grpc)
        status, look = await first_look(client)
        assert status == 200 and look["kind"] == "server"
        assert [(row["tenant"], row["device"]) for row in look["devices"]] == [("local", "kitchen")]
        assert (await switch(client)).json() == {"drafting": False}
        assert not manager.records.known("local", "kitchen").drafting
        missing = await switch(client, device="bath")
        assert missing.status_code == 404 and "'bath'" in missing.json()["error"]["message"]
        answer = await client.post(CHAT, json=QUESTION)
        assert answer.status_code == 200 and '"server"' in answer.text


async def test_where_tenants_have_tokens_the_fleet_is_nobodys():
    async with http_serving(**of_tenants()) as (manager, grpc, address):
        await drafted(grpc, "token-a")
        for key in ("", "token-a", "wrong"):
            async with asking(address, key) as client:
                status, error = await first_look(client)
                assert status == 401 and "--operator-keys" in error["message"]
                assert (await switch(client, tenant="a")).status_code == 401
                assert (await client.get("/", headers=HTML)).status_code == 200
        assert manager.stats.refused["unauthorized"] == 6 and manager.records.known("a", "kitchen").drafting


async def test_at_home_who_sits_at_the_server_is_its_operator():
    """With --paired all tenants are devices of one person; beyond loopback nobody sees them all the same."""
    for host, status in ((CONFIG.http, 200), ("0.0.0.0:0", 401)):
        config = replace(CONFIG, http=host, paired=True)
        async with (
            http_serving(config, **of_tenants()) as (_, _, address),
            asking(address.replace("0.0.0.0", "127.0.0.1")) as client,
        ):
            assert (await first_look(client))[0] == status
            assert (await client.post("/v1/completions", json=HI)).status_code == 401


async def test_an_operators_key_opens_the_fleet_and_no_answers(keyed):
    async with http_serving(keyed, **of_tenants()) as (manager, grpc, address):
        await drafted(grpc, "token-a")
        for key in ("operator-1", "operator-2"):
            async with asking(address, key) as client:
                status, look = await first_look(client)
                assert status == 200 and [row["tenant"] for row in look["devices"]] == ["a"]
                assert (await switch(client, tenant="a")).status_code == 200
                for path, body in (
                    ("/v1/completions", HI),
                    (CHAT, QUESTION),
                    ("/v1/responses", {"input": "Hi"}),
                ):
                    refused = await client.post(path, json=body)
                    assert refused.status_code == 401 and "--tokens" in refused.json()["error"]["message"]
                assert (await client.get("/v1/models")).status_code == 401
        for key in ("", "token-a", "token-b", "operator-3", "operator-", "opérator-1"):
            async with asking(address) as client:
                given = {"authorization": f"Bearer {key}".encode()} if key else {}
                status, error = await first_look(client, **given)
                assert status == 401 and "--operator-keys" in error["message"]
                assert "operator-1" not in str(error)
        async with asking(address, "token-a") as client:
            assert await said(client) and (await client.post(CHAT, json=QUESTION)).status_code == 200
        assert not manager.records.known("a", "kitchen").drafting


async def test_an_operators_key_is_needed_on_this_machine_too(keyed):
    async with http_serving(keyed) as (_, _, address), asking(address) as client:
        assert (await first_look(client))[0] == 401 and (await switch(client)).status_code == 401
        assert await said(client)  # who may ask is another matter
        assert (await first_look(client, authorization="Bearer operator-1"))[0] == 200


async def test_beyond_this_machine_there_is_no_operator_without_a_key(keyed):
    for config, status in ((CONFIG, 401), (keyed, 200)):
        wide = replace(config, http="0.0.0.0:0", insecure=True)
        async with (
            http_serving(wide) as (_, grpc, address),
            asking(address.replace("0.0.0.0", "127.0.0.1")) as client,
        ):
            await drafted(grpc)
            key = {"authorization": "Bearer operator-1"}
            assert (await first_look(client, **BEYOND, **key))[0] == status
            assert (await switch(client, BEYOND | key)).status_code == status
            assert (await first_look(client, **BEYOND))[0] == 401
            pointed = await client.get(EVENTS, headers={"host": "evil.example", **key})
            assert pointed.json()["error"]["code"] == "forbidden_host"


async def test_who_guesses_keys_loses_the_connection(keyed):
    """As with tenants' tokens."""
    limits = ClientLimits(refusals=Rate(1, 5))
    guess = f"GET {EVENTS} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer guess\r\n\r\n".encode()
    async with (
        http_serving(keyed, client_limits=limits) as (manager, _, address),
        raw(address) as (reader, writer),
    ):
        for _ in range(100):
            writer.write(guess)
        answers = await asyncio.wait_for(reader.read(), 20)  # to its end: the server closes it
        assert 5 <= answers.count(b"HTTP/1.1 401 ") <= 100 and manager.stats.limited["refusals"]
        assert manager.stats.refused["unauthorized"] >= 5


async def test_guesses_on_new_connections_are_slow_and_tenants_notice_nothing(keyed):
    """Each guess on a connection of its own, which is no more than one refusal for it."""
    limits = ClientLimits(refusals=Rate(0.1, 5))
    guess = (
        f"GET {EVENTS} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\nauthorization: Bearer x\r\n\r\n"
    )

    async def guessed(address):
        async with raw(address) as (reader, writer):
            writer.write(guess.encode())
            assert b" 401 " in (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n")[0]

    async with http_serving(keyed, client_limits=limits) as (_, _, address), asking(address) as client:
        for _ in range(6):
            await guessed(address)
        began = time.monotonic()
        await guessed(address)
        assert time.monotonic() - began >= GUESS_S
        began = time.monotonic()
        assert await said(client)
        assert time.monotonic() - began < GUESS_S
        assert (await first_look(client, authorization="Bearer operator-1"))[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
async def test_no_page_of_elsewhere_sees_the_fleet_of_this_machine(origin):
    async with http_serving() as (manager, grpc, address), asking(address) as client:
        await drafted(grpc)
        assert (await first_look(client, origin=origin))[1]["code"] == "forbidden_origin"
        assert (await switch(client, {"origin": origin})).status_code == 403
        assert (await first_look(client, host="evil.example"))[1]["code"] == "forbidden_host"
        assert manager.records.known("local", "kitchen").drafting
        own = {"origin": f"http://{address}", "sec-fetch-site": "same-origin"}
        assert (await switch(client, own)).status_code == 200


async def test_looks_end_with_the_server():
    async with http_serving() as (_, _, address):
        client = await asking(address).__aenter__()
        reading = asyncio.ensure_future(client.get(EVENTS))
        await asyncio.sleep(0.1)
        assert not reading.done()
    text = (await asyncio.wait_for(reading, 20)).text
    assert text.startswith("data: {") and text.endswith("}\n\n")
    await client.aclose()


def test_the_file_of_keys(tmp_path):
    assert operators("", True) == Operators((), True)
    path = tmp_path / "keys"
    with pytest.raises(NotFound, match="key file"):
        operators(str(path), False)
    path.write_text("one two\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="one key per line"):
        operators(str(path), False)
    path.write_text("secret-key\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        operators(str(path), False)
    assert "secret-key" not in repr(Operators(("secret-key",)))


# -- a gateway ----------------------------------------------------------------------------------------------------


async def test_a_gateway_shows_its_replicas_to_operators(keyed):
    async with api("a", "b", config=keyed, tenants=TWO) as (_, address):
        async with asking(address, "token-a") as client:
            assert (await first_look(client))[0] == 401
        async with asking(address, "operator-1") as client:
            status, look = await first_look(client)
            assert status == 200 and look["kind"] == "gateway" and set(look["replicas"]) == {"a", "b"}
            refused = await switch(client)
            assert refused.status_code == 400 and "single server" in refused.json()["error"]["message"]


async def test_a_gateways_page_answers():
    async with api("a", "b") as (_, address), asking(address) as client:
        await until_ready(client)
        whole = (await client.post("/v1/chat/completions", json=QUESTION)).json()["choices"][0]["message"][
            "content"
        ]
        lines = (await client.post(CHAT, json=QUESTION)).text
        news = [json.loads(part[6:]) for part in lines.split("\n\n") if part]
        assert "".join(piece[0] for event in news for piece in event["pieces"]) == whole
        assert news[-1]["finish_reason"] == "length"
