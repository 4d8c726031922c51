"""/v1/messages of a server and a device: a chat's text, stop sequences, and prompts counted without being computed."""

import pytest

from edge_client.link.remote import RemoteSession
from opensled.core.answer import Task
from opensled.core.errors import InvalidRequest, NotFound, Overloaded
from opensled.core.messages import ChatMessage, Open, SamplingParams
from tests.devices import device_on
from tests.fakes import FakeEngine
from tests.http_serving import TWO, asking, fake_engine, http_serving, words
from tests.serving import first_reply, linked
from tests.three_tiers import IMPATIENT, tiers
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits

HI = (ChatMessage("user", "Hi"),)
LENGTH = len("Hi")  # tokens: the fake text has one for each byte
COUNT = SamplingParams(max_tokens=0)
ASKED = {"messages": [{"role": "user", "content": "Hi"}]}


def lazy_engine():
    """It must not be asked for anything."""
    engine = fake_engine()

    def forward(segments):
        raise AssertionError("to count a prompt nothing is computed")

    engine.forward = forward
    return engine


async def test_the_text_is_that_of_a_chat_and_ends_at_a_stop_sequence():
    async with http_serving() as (_, _, address), asking(address) as client:
        body = {**ASKED, "max_tokens": 12, "temperature": 0}
        reply = (await client.post("/v1/messages", json=body)).json()
        assert reply["content"] == [{"type": "text", "text": words("Hi", 12)}]
        assert reply["stop_reason"] == "max_tokens" and reply["usage"]["input_tokens"] == LENGTH
        stop = words("Hi", 12)[3:5]
        reply = (await client.post("/v1/messages", json={**body, "stop_sequences": ["@@", stop]})).json()
        text = "".join(block["text"] for block in reply["content"])
        assert text == words("Hi", 12).partition(stop)[0]
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", stop)


async def test_a_server_counts_a_prompt_and_computes_nothing():
    async with http_serving(engine=lazy_engine()) as (manager, _, address), asking(address) as client:
        counted = await client.post("/v1/messages/count_tokens", json=ASKED)
        assert counted.json() == {"input_tokens": LENGTH}, counted.text
        assert not manager.remembered and not manager.stats.opened.total()


async def test_a_device_counts_by_its_server():
    async with http_serving(engine=lazy_engine()) as (manager, address, _), device_on(address) as device:
        chunks = [chunk async for chunk in device.answer(Task(HI, COUNT, drafts=False))]
        (chunk,) = chunks
        assert (chunk.finish_reason, chunk.stats.prompt_tokens, chunk.stats.completion_tokens) == (
            "length",
            LENGTH,
            0,
        )
        assert not manager.remembered and not manager.stats.opened.total()


async def test_a_relay_asks_the_server_above_whose_template_counts():
    top, middle = FakeEngine(num_blocks=100), FakeEngine(num_blocks=100)
    async with tiers(top, middle) as (network, manager, upper):
        # A template of its own
        manager.manager.inputs.text.render = lambda messages, tools, *_: (1, 2, 3)
        upper.manager.inputs.text.render = lambda messages, tools, *_: (1,) * LENGTH
        session = RemoteSession(network.connect, Open(HI, COUNT), IMPATIENT)
        await session.open()
        await session.close()
        assert (
            len(session.truth) == LENGTH and not manager.manager.remembered and not upper.manager.remembered
        )


@pytest.mark.parametrize(
    ("message", "drains", "error"),
    [
        (Open(HI, COUNT), True, Overloaded),
        (Open(HI, COUNT, model_id="another"), False, NotFound),
        (Open("Hi there", COUNT), False, InvalidRequest),
    ],
)
async def test_a_count_is_refused_where_an_answer_would_be(message, drains, error):
    tenants = Tenants(default=TenantLimits(max_prompt=3))
    async with http_serving(limits=SessionLimits(tenants=tenants)) as (manager, address, _):
        manager.draining = drains
        async with linked(address) as link:
            assert (await first_reply(link, message)).code == error.code


async def test_a_key_in_either_header_is_a_tenant_s():
    async with http_serving(tenants=TWO, limits=SessionLimits(tenants=TWO)) as (_, _, address):
        for key, status in (("token-a", 200), ("token-c", 401)):
            async with asking(address) as client:
                body = {**ASKED, "max_tokens": 2}
                reply = await client.post("/v1/messages", json=body, headers={"x-api-key": key})
                assert reply.status_code == status, reply.text
                assert reply.json()["type"] == ("message" if status == 200 else "error")
