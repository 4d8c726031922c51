"""Streams that pass through the gateway: as they are, under their tenant's name, and to their end."""

import asyncio

import grpc

from opensled import codec
from opensled.messages import Open, Opened, SamplingParams, Verdict
from tests.fakes import continuation
from tests.raw_wire import raw_stream
from tests.replicas import cluster
from tests.serving import GREEDY, PROMPT, finish, linked
from tests.system import until
from verify_server.security import Tenants

TOKENS = Tenants((("secret-1", "alice"), ("secret-2", "bob")))
LONG = SamplingParams(temperature=0, max_tokens=150)


def run(scenario):
    asyncio.run(scenario())


def test_a_stream_passes_through_under_its_tenants_name():
    async def scenario():
        async with cluster("a", proxy=True, tenants=TOKENS) as one:
            for token, tenant in TOKENS.by_token:
                async with linked(one.address, token=token) as link:
                    stream = link.connect()
                    await stream.send(Open(PROMPT, LONG))
                    opened = await stream.receive()
                    assert {session.tenant for session in one["a"].door.remembered} == {tenant}
                    await stream.close()
                    _, tokens = await finish(link, Open(PROMPT, LONG, resume_token=opened.resume_token))
                    assert tokens == continuation(PROMPT, 150)
                    assert one["a"].door.stats.opened["resumed"] == 1
                one["a"].door.stats.opened.clear()
                for session in one["a"].door.remembered:  # a finished one is remembered for a while as well
                    one["a"].door.forget(session)

    run(scenario)


def test_bytes_pass_through_as_they_are():
    """Also those that this gateway's version does not know."""
    unknown = b"\xfa\x3e\x03new"  # field 1007

    async def scenario():
        async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
            heard = []
            serve = one["a"].door.open

            async def listening(message, tenant):
                heard.append(message)
                return await serve(message, tenant)

            one["a"].door.open = listening
            opening = codec.encode_client(Open(PROMPT, GREEDY)).SerializeToString()
            await stream.send(opening + unknown)
            reason, tokens = await stream.outcome()
            assert reason == "length" and tokens[len(PROMPT) :] == continuation(PROMPT, 20)
            assert heard == [Open(PROMPT, GREEDY)]

    run(scenario)


def test_a_stream_whose_replica_dies_ends_as_unavailable():
    async def scenario():
        async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
            opening = Open(PROMPT, LONG)
            await stream.send(codec.encode_client(opening).SerializeToString())
            assert isinstance(await stream.receive(), Opened)
            assert isinstance(await stream.receive(), Verdict)
            await one["a"].stop()
            while not isinstance(message := await stream.receive(), str):
                pass
            assert message == "UNAVAILABLE" and one.serving.gateway.stats.lost == 1

    run(scenario)


def test_a_device_that_vanishes_is_gone_for_the_replica_too():
    async def scenario():
        async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
            await stream.send(codec.encode_client(Open(PROMPT, LONG)).SerializeToString())
            assert isinstance(await stream.receive(), Opened)
            stream.vanish()
            await until(lambda: not any(session.has_reader for session in one["a"].door.remembered))

    run(scenario)


def test_a_deadline_goes_on_to_the_replica():
    async def scenario():
        async with cluster("a", proxy=True) as one:
            left = []
            link = one.serving.gateway.links.of(one["a"].heartbeat())
            begin = link.sequence
            link.sequence = lambda tenant, seconds: left.append(seconds) or begin(tenant, seconds)
            async with grpc.aio.insecure_channel(one.address) as channel:
                for timeout in (None, 300.0):
                    call = channel.stream_stream(f"/{codec.SERVICE_NAME}/Sequence")(timeout=timeout)
                    await call.write(codec.encode_client(Open(PROMPT, GREEDY)).SerializeToString())
                    await call.read()
                    call.cancel()
            assert left[0] is None and 200 < left[1] < 301  # gRPC rounds

    run(scenario)
