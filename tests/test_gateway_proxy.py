"""Streams that pass through the gateway: as they are, under their tenant's name, and to their end."""

import asyncio
import contextlib

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from opensled.core.messages import Draft, DraftBlock, DraftToken, Open, Opened, SamplingParams, Verdict
from opensled.wire import codec
from tests.fakes import continuation
from tests.raw_wire import raw_stream
from tests.replicas import cluster
from tests.serving import GREEDY, PROMPT, finish, linked, opened_at
from tests.system import until
from verify_server.access.security import Tenants
from verify_server.cluster.replica_links import LinkClosed, ReplicaLink

TOKENS = Tenants((("secret-1", "alice"), ("secret-2", "bob")))
LONG = SamplingParams(temperature=0, max_tokens=150)
ENDLESS = SamplingParams(temperature=0, max_tokens=5000)


async def test_a_stream_passes_through_under_its_tenants_name():
    async with cluster("a", proxy=True, tenants=TOKENS) as one:
        for token, tenant in TOKENS.by_token:
            async with linked(one.address, token=token) as link:
                stream = link.connect()
                await stream.send(Open(PROMPT, LONG))
                opened = await stream.receive()
                assert {session.tenant for session in one["a"].manager.remembered} == {tenant}
                await stream.close()
                _, tokens = await finish(link, Open(PROMPT, LONG, resume_token=opened.resume_token))
                assert tokens == continuation(PROMPT, 150)
                assert one["a"].manager.stats.opened["resumed"] == 1
            one["a"].manager.stats.opened.clear()
            for session in one["a"].manager.remembered:  # a finished one is remembered for a while as well
                one["a"].manager.forget(session)


async def test_bytes_pass_through_as_they_are():
    """Also those that this gateway's version does not know."""
    unknown = b"\xfa\x3e\x03new"  # field 1007
    async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
        heard = []
        serve = one["a"].manager.open

        async def listening(message, *caller):
            heard.append(message)
            return await serve(message, *caller)

        one["a"].manager.open = listening
        opening = codec.encode_client(Open(PROMPT, GREEDY)).SerializeToString()
        await stream.send(opening + unknown)
        reason, tokens = await stream.outcome()
        assert reason == "length" and tokens[len(PROMPT) :] == continuation(PROMPT, 20)
        assert heard == [Open(PROMPT, GREEDY)]


async def test_a_stream_whose_replica_dies_ends_as_unavailable():
    async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
        opening = Open(PROMPT, LONG)
        await stream.send(codec.encode_client(opening).SerializeToString())
        assert isinstance(await stream.receive(), Opened)
        assert isinstance(await stream.receive(), Verdict)
        await one["a"].stop()
        while not isinstance(message := await stream.receive(), str):
            pass
        assert message == "UNAVAILABLE" and one.serving.gateway.stats.lost == 1


async def test_a_device_that_vanishes_is_gone_for_the_replica_too():
    async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
        await stream.send(codec.encode_client(Open(PROMPT, LONG)).SerializeToString())
        assert isinstance(await stream.receive(), Opened)
        stream.vanish()
        await until(lambda: not any(session.has_reader for session in one["a"].manager.remembered))


async def test_a_deadline_goes_on_to_the_replica():
    async with cluster("a", proxy=True) as one:
        left = []
        link = one.serving.gateway.links.of(one["a"].heartbeat())
        begin = link.sequence
        link.sequence = lambda *asked: left.append(asked[1]) or begin(*asked)
        async with grpc.aio.insecure_channel(one.address) as channel:
            for timeout in (None, 300.0):
                call = channel.stream_stream(f"/{codec.SERVICE_NAME}/Sequence")(timeout=timeout)
                await call.write(codec.encode_client(Open(PROMPT, GREEDY)).SerializeToString())
                await call.read()
                call.cancel()
        assert left[0] is None and 200 < left[1] < 301  # gRPC rounds


@contextlib.asynccontextmanager
async def health(one):
    """A function of what the gateway says of its health next."""
    async with grpc.aio.insecure_channel(one.address) as channel:
        request = health_pb2.HealthCheckRequest(service=codec.SERVICE_NAME)
        watch = health_pb2_grpc.HealthStub(channel).Watch(request)

        async def told():
            reply = await asyncio.wait_for(watch.read(), 20)
            return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)

        yield told


async def waiting(stream):
    """A sequence under way whose replica waits for its device's next draft."""
    await stream.send(codec.encode_client(Open(PROMPT, ENDLESS)).SerializeToString())
    opened = await stream.receive()
    draft = Draft(1, DraftBlock(len(opened.prompt_ids), (DraftToken(1),)))
    await stream.send(codec.encode_client(draft).SerializeToString())
    return opened


async def answered(stream, opened):
    """Its next draft gets through, and the answer as well."""
    draft = Draft(2, DraftBlock(len(opened.prompt_ids), (DraftToken(1),)))
    await stream.send(codec.encode_client(draft).SerializeToString())
    while not isinstance(message := await stream.receive(), Verdict) or message.answers < 2:
        assert not isinstance(message, str), message


async def ending(stream):
    """The name of the status that a stream ends with."""
    while not isinstance(message := await stream.receive(), str):
        pass
    return message


async def test_missing_heartbeats_end_no_stream():
    async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
        links, members = one.serving.gateway.links, one.members
        opened = await waiting(stream)
        kept = links.of(one["a"].heartbeat())
        async with health(one) as told:
            assert await told() == "SERVING"
            one.members = []
            assert await told() == "NOT_SERVING"
            assert one.seen == set() and kept.streams == 1
            one.members = members
            assert await told() == "SERVING"
        assert links.of(one["a"].heartbeat()) is kept
        await answered(stream, opened)
        assert one.serving.gateway.stats.lost == 0


async def test_a_link_that_is_let_go_ends_its_streams_as_unavailable():
    async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
        await waiting(stream)
        members, one.members = one.members, []
        await members[0].readiness.set(False)
        assert await asyncio.wait_for(ending(stream), 20) == "UNAVAILABLE"
        one.members = members
        assert one.serving.gateway.stats.lost == 1
        await until(lambda: not one["a"].manager.remembered[0].has_reader)


async def test_a_link_without_streams_goes_with_the_heartbeats():
    async with cluster("a", proxy=True) as one:
        members, one.members = one.members, []
        await until(lambda: not one.serving.gateway.links._links)
        one.members = members
        await until(lambda: one.seen == {"a"})


class Broken:
    """A call that fails at once, by a fault of gRPC's own."""

    async def write(self, message):
        pass

    async def done_writing(self):
        pass

    async def read(self):
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.INTERNAL, grpc.aio.Metadata(), grpc.aio.Metadata(), "Internal error from Core"
        )

    def cancel(self):
        pass


async def test_a_fault_between_gateway_and_replica_is_no_fault_of_the_device():
    async with cluster("a", proxy=True) as one, raw_stream(one.address) as stream:
        one.serving.gateway.links.of(one["a"].heartbeat()).sequence = lambda *asked: Broken()
        await stream.send(codec.encode_client(Open(PROMPT, GREEDY)).SerializeToString())
        assert await stream.receive() == "UNAVAILABLE"


@pytest.mark.parametrize("answers", [False, True], ids=["hangs", "serves"])
async def test_a_device_whose_link_is_let_go_while_it_is_placed_goes_elsewhere(answers):
    """Its heartbeats cease while the replica that remembers the sequence is asked, or when it has just said yes."""
    async with cluster("a", "b", proxy=True) as one, silent_port() as nobody:
        token = await opened_at(one["a"])
        link = one.serving.gateway.links.of(one["a"].heartbeat())
        channel, confirm = link._channel, link.confirm
        if not answers:
            link._channel = grpc.aio.insecure_channel(nobody)

        async def confirmed():
            answer = asyncio.ensure_future(confirm())
            if answers:
                await answer
            members, one.members = one.members, [one["b"]]
            await until(lambda: link not in one.serving.gateway.links._links.values())
            one.members = members
            return await answer

        link.confirm = confirmed
        async with linked(one.address) as through:
            _, tokens = await finish(through, Open(PROMPT, LONG, resume_token=token))
        await channel.close()
        assert tokens == continuation(PROMPT, 150)
        assert one.serving.gateway.stats.placed == {"b": 1}


async def test_a_question_on_a_closed_link_is_answered_with_no():
    async with cluster("a", proxy=True) as one, silent_port() as address:
        links = one.serving.gateway.links
        link = ReplicaLink(address, links._credentials, lambda: None)
        answers = [asyncio.ensure_future(link.confirm()), asyncio.ensure_future(link.ask("Describe", b""))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await link.close()
        confirmed, told = await asyncio.gather(*answers, return_exceptions=True)
        assert confirmed is False and isinstance(told, LinkClosed)


@contextlib.asynccontextmanager
async def silent_port():
    """A machine that takes connections and says nothing."""
    server = await asyncio.start_server(lambda reader, writer: reader.read(), "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_who_watches_its_health_hears_first_and_keeps_it_from_nothing(monkeypatch):
    monkeypatch.setattr("verify_server.cluster.gateway.CLOSE_SECONDS", 0.0)
    async with cluster("a", proxy=True) as one, health(one) as told:
        assert await told() == "SERVING"
        async with raw_stream(one.address) as stream:
            opened = await waiting(stream)
            stopping = asyncio.ensure_future(one.serving.stop(600))
            assert await told() == "NOT_SERVING"
            await answered(stream, opened)
        await asyncio.wait_for(stopping, 30)
