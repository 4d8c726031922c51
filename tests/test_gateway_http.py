"""`opensled serve --http` at a gateway: replicas answer through it, and the loss of one changes no text."""

import json

import pytest

from opensled.text.tokenizer import TargetTokenizer
from tests.fake_target import _Text
from tests.fakes import continuation
from tests.http_serving import HI, asking, said
from tests.replicas import api, until_ready
from tests.system import until
from verify_server.access.security import Tenants

TOKENS = Tenants((("secret-1", "alice"),))
LONG = {**HI, "max_tokens": 150, "stream": True}


def words(count):
    text = _Text()
    return TargetTokenizer(text.tokenizer_json).decode(continuation(text.encode("Hi"), count))


def home(one):
    """The replica that serves a sequence."""
    return next(replica for replica in one.members if any(s.has_reader for s in replica.manager.remembered))


async def test_replicas_answer_through_the_gateway_under_the_tenants_name():
    async with (
        api("a", "b", tenants=TOKENS) as (one, address),
        asking(address, "secret-1") as client,
        asking(address) as stranger,
    ):
        await until_ready(client)
        assert await said(client, n=2) == words(12)
        assert (await stranger.post("/v1/completions", json=HI)).status_code == 401
        async with client.stream("POST", "/v1/completions", json=LONG):
            await until(lambda: any(replica.manager.remembered for replica in one.members))
            assert {s.tenant for s in home(one).manager.remembered} == {"alice"}
        await until(lambda: not any(s.has_reader for r in one.members for s in r.manager.remembered))


@pytest.mark.parametrize("draining", [False, True])
@pytest.mark.parametrize("how", ["stop", "drain"])
async def test_a_replica_that_goes_in_mid_answer_changes_no_text(how, draining):
    """While the gateway drained, the answer was refused another replica, and broke off after 30 s."""
    async with api("a", "b") as (one, address), asking(address) as client:
        await until_ready(client)
        text, lost = "", False
        async with client.stream("POST", "/v1/completions", json=LONG) as response:
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                text += json.loads(line[6:])["choices"][0]["text"]
                if not lost and text:
                    lost, gone = True, home(one)
                    one.serving.gateway.draining = draining
                    one.members.remove(gone)
                    await getattr(gone, how)()
        assert text == words(150) and lost
        assert one.members[0].manager.stats.opened["new"] == 1


async def test_without_a_replica_it_says_so():
    async with api() as (one, address), asking(address) as client:
        for path in ("/readyz", "/v1/models"):
            assert (await client.get(path)).status_code == 503
        assert (await client.get("/health")).status_code == 200
        await one.add("a", text=_Text())
        await until_ready(client)
        assert await said(client) == words(12)
        one.serving.gateway.draining = True
        refused = await client.post("/v1/completions", json=HI)
        assert refused.status_code == 429 and "shutting down" in refused.text
