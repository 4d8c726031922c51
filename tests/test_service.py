"""The gRPC face over a fake target: who gets in, what is refused, and that nobody else notices."""

import asyncio
import dataclasses
import time
from contextlib import asynccontextmanager

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from edge_client.link import Endpoint, Link
from hw_profiles.profile import HardwareProfile
from opensled import codec
from opensled.errors import (
    FutureBase,
    InvalidRequest,
    OpenSledError,
    Overloaded,
    ProtocolError,
    TruthConflict,
    Unauthorized,
    Unreachable,
    Unsupported,
    UsageError,
)
from opensled.messages import (
    Cancel,
    ChatMessage,
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    Open,
    Opened,
    SamplingParams,
    Verdict,
)
from scheduler.fcfs import Fcfs
from tests.fakes import VOCAB, FakeEngine, FakeText, continuation
from verify_server import service
from verify_server.command import describe
from verify_server.loop import VerifyLoop
from verify_server.security import Tenants, read_tenants, require_safe
from verify_server.sessions import Door, DoorLimits
from verify_server.target import Target

GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPT = (3, 1, 4)


@asynccontextmanager
async def serving(tenants=Tenants(), tls=None, limits=DoorLimits(max_sessions=3, max_draft=8, linger=0.05)):
    """A server on a free port; yields (door, address)."""
    target = Target("fake", FakeEngine(num_blocks=100), FakeText())
    loop = VerifyLoop(target.engine, Fcfs(float("inf")), HardwareProfile(64), time.monotonic)
    door = Door(loop, target.text, limits)
    face = service.VerifyService(door, describe(door, target), target.text, tenants)
    server, port = await service.start(face, "127.0.0.1:0", tls)
    running = asyncio.ensure_future(loop.run())
    try:
        yield door, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        loop.close()


@asynccontextmanager
async def linked(address, **options):
    link = Link(Endpoint(address, timeout=5.0, **options))
    try:
        yield link
    finally:
        await link.close()


async def first_reply(link, *messages):
    """Send messages on a new stream; the first reply that is an error, or the last one read."""
    stream = link.connect()
    for message in messages:
        await stream.send(message)
    reply = await stream.receive()
    while not isinstance(reply, Failure) and len(messages) > 1:
        reply = await stream.receive()
    await stream.close()
    return reply


async def blocks_return(door):
    """Every KV block comes back once the sequences are over."""
    deadline = time.monotonic() + 5
    while door.loop.pool.num_free < door.loop.pool.num_blocks:
        assert time.monotonic() < deadline, "KV blocks leaked"
        await asyncio.sleep(0.005)


async def finish(link, message=Open(PROMPT, GREEDY)):
    """A whole sequence without drafts."""
    stream = link.connect()
    await stream.send(message)
    opened = await stream.receive()
    tokens: list[int] = []
    while True:
        verdict = await stream.receive()
        if isinstance(verdict, Failure):
            raise verdict.error()
        assert isinstance(verdict, Verdict) and verdict.base == len(opened.prompt_ids) + len(tokens)
        tokens += verdict.tokens
        if verdict.finish_reason:
            await stream.close()
            return opened, tokens


def test_describe_tokenizer_health_and_reflection():
    async def scenario():
        async with serving() as (door, address), linked(address) as link:
            info = await link.describe()
            assert (info.model_id, info.vocab_size, info.rules) == ("fake", VOCAB, ("match",))
            assert info.limits == door.sequence_limits
            assert await link.tokenizer_json() == FakeText.tokenizer_json
            async with grpc.aio.insecure_channel(address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                status = await health.Check(health_pb2.HealthCheckRequest(service=codec.SERVICE_NAME))
                assert status.status == health_pb2.HealthCheckResponse.SERVING
                reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
                request = reflection_pb2.ServerReflectionRequest(list_services="")
                async for reply in reflection.ServerReflectionInfo(iter([request])):
                    names = {one.name for one in reply.list_services_response.service}
                    assert codec.SERVICE_NAME in names

    asyncio.run(scenario())


def test_a_sequence_without_drafts_streams():
    async def scenario():
        async with serving() as (door, address), linked(address) as link:
            _, tokens = await finish(link)
            assert tokens == continuation(PROMPT, 20)
            await blocks_return(door)

    asyncio.run(scenario())


BAD_OPENS = {
    "empty prompt": (Open((), GREEDY), InvalidRequest, "prompt"),
    "id beyond the vocabulary": (Open((VOCAB,), GREEDY), InvalidRequest, "prompt"),
    "committed id beyond the vocabulary": (Open((1,), GREEDY, committed=(VOCAB,)), InvalidRequest, "prompt"),
    "prompt as long as the context": (Open((1,) * 200, GREEDY), InvalidRequest, "prompt"),
    "nothing left to generate": (Open((1,), GREEDY, committed=(2,) * 20), InvalidRequest, "prompt"),
    "unknown rule": (Open((1,), GREEDY, rule="telepathy"), Unsupported, "rule"),
}


@pytest.mark.parametrize("name", BAD_OPENS)
def test_a_bad_open_is_refused_by_name_and_touches_nobody(name):
    message, error, field = BAD_OPENS[name]

    async def scenario():
        async with serving() as (door, address), linked(address) as link:
            other = asyncio.ensure_future(finish(link))
            reply = await first_reply(link, message)
            assert isinstance(reply, Failure)
            assert type(reply.error()) is error and reply.field == field
            assert (await other)[1] == continuation(PROMPT, 20)
            await blocks_return(door)

    asyncio.run(scenario())


def draft(base, *ids):
    return Draft(1, DraftBlock(base, tuple(DraftToken(id) for id in ids)))


BAD_SECONDS = {
    "base in the future": (draft(150, 1), FutureBase),
    "base inside the prompt": (draft(1, 1), InvalidRequest),
    "draft too long": (draft(3, *[1] * 9), InvalidRequest),
    "draft id beyond the vocabulary": (draft(3, VOCAB), InvalidRequest),
    "a second Open": (Open((7,), GREEDY), InvalidRequest),
}


@pytest.mark.parametrize("name", BAD_SECONDS)
def test_a_bad_message_ends_its_own_sequence_only(name):
    message, error = BAD_SECONDS[name]

    async def scenario():
        async with serving() as (door, address), linked(address) as link:
            other = asyncio.ensure_future(finish(link))
            reply = await first_reply(
                link, Open((5, 6, 7), dataclasses.replace(GREEDY, max_tokens=120)), message
            )
            assert isinstance(reply, Failure) and type(reply.error()) is error
            assert (await other)[1] == continuation(PROMPT, 20)
            await blocks_return(door)

    asyncio.run(scenario())


def test_the_first_message_must_be_open():
    async def scenario():
        async with serving() as (_, address), linked(address) as link:
            assert isinstance((await first_reply(link, Cancel())).error(), ProtocolError)

    asyncio.run(scenario())


def test_cancel_and_a_vanished_client_free_everything():
    async def scenario():
        async with serving() as (door, address), linked(address) as link:
            for last_word in (Cancel(), None):
                stream = link.connect()
                await stream.send(Open(PROMPT, dataclasses.replace(GREEDY, max_tokens=150)))
                await stream.receive()
                if last_word:
                    await stream.send(last_word)
                await stream.close()
            await blocks_return(door)

    asyncio.run(scenario())


def test_a_full_server_says_when_to_come_back():
    async def scenario():
        async with serving(limits=DoorLimits(max_sessions=0)) as (_, address), linked(address) as link:
            error = (await first_reply(link, Open(PROMPT, GREEDY))).error()
            assert isinstance(error, Overloaded) and error.retry_after > 0

    asyncio.run(scenario())


def test_a_resume_token_continues_and_supersedes_and_lies_are_refused():
    async def scenario():
        limits = DoorLimits(linger=30)
        async with serving(limits=limits) as (door, address), linked(address) as link:
            opened, tokens = await finish(link)
            again = Open(opened.prompt_ids, GREEDY, tuple(tokens[:5]), noise_key=opened.noise_key)
            resumed, rest = await finish_known(
                link, dataclasses.replace(again, resume_token=opened.resume_token)
            )
            assert rest == tokens[5:] and resumed.noise_key == opened.noise_key
            assert len(door.remembered) == 1
            lie = dataclasses.replace(again, committed=(9, 9), resume_token=opened.resume_token)
            assert isinstance((await first_reply(link, lie)).error(), TruthConflict)
            _, rest = await finish_known(
                link, dataclasses.replace(again, resume_token=b"from another server")
            )
            assert rest == tokens[5:]

    asyncio.run(scenario())


async def finish_known(link, message):
    stream = link.connect()
    await stream.send(message)
    opened = await stream.receive()
    assert isinstance(opened, Opened)
    tokens: list[int] = []
    while True:
        verdict = await stream.receive()
        tokens += verdict.tokens
        if verdict.finish_reason:
            await stream.close()
            return opened, tokens


def test_chat_without_a_template_says_what_to_do():
    async def scenario():
        class Plain(FakeText):
            def render(self, messages):
                raise Unsupported("this target has no chat template; send text (--raw)", "messages")

        async with serving() as (door, address), linked(address) as link:
            door.text = Plain()
            reply = await first_reply(link, Open((ChatMessage("user", "hi"),), GREEDY))
            assert isinstance(reply.error(), Unsupported) and "--raw" in reply.reason

    asyncio.run(scenario())


def test_tokens_open_the_door_and_nothing_else_does(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("# comment\nsecret-1 alice\nsecret-2 bob\n")
    path.chmod(0o600)
    tenants = read_tenants(path)

    async def scenario():
        async with serving(tenants) as (door, address):
            for token in ("", "wrong"):
                async with linked(address, token=token) as link:
                    with pytest.raises(Unauthorized):
                        await link.describe()
                    with pytest.raises(Unauthorized):
                        await first_reply(link, Open(PROMPT, GREEDY))
            async with linked(address, token="secret-1") as link:
                opened, _ = await finish(link)
            async with linked(address, token="secret-2") as link:
                await first_reply(link, Open(PROMPT, GREEDY, resume_token=opened.resume_token))
            assert {session.tenant for session in door.remembered} <= {"alice", "bob"}
            assert door._signer.session_of(opened.resume_token, "bob") is None

    asyncio.run(scenario())


def test_a_token_file_others_can_read_is_refused(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("secret alice\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_tenants(path)
    path.chmod(0o600)
    assert read_tenants(path).of("Bearer secret") == "alice"
    path.write_text("secret\n")
    with pytest.raises(UsageError, match="TOKEN TENANT"):
        read_tenants(path)


def test_listening_beyond_this_machine_needs_tls_and_tokens():
    require_safe("127.0.0.1:0", has_tls=False, has_tokens=False, insecure=False)
    require_safe("[::1]:0", has_tls=False, has_tokens=False, insecure=False)
    require_safe("0.0.0.0:0", has_tls=True, has_tokens=True, insecure=False)
    require_safe("0.0.0.0:0", has_tls=False, has_tokens=False, insecure=True)
    for tls, tokens in ((True, False), (False, True), (False, False)):
        with pytest.raises(UsageError, match="--insecure"):
            require_safe("0.0.0.0:0", has_tls=tls, has_tokens=tokens, insecure=False)


def test_tls(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")

    async def scenario():
        tls = service.Tls(tmp_path / "cert.pem", tmp_path / "key.pem")
        async with serving(tls=tls) as (_, address):
            async with linked(address, tls=True, tls_ca=tmp_path / "ca.pem") as link:
                assert (await finish(link))[1] == continuation(PROMPT, 20)
            for options in ({}, {"tls": True, "tls_ca": tmp_path / "stranger.pem"}):
                async with linked(address, **options) as link:
                    with pytest.raises(Unreachable):
                        await link.describe()

    asyncio.run(scenario())


def test_a_busy_port_is_a_clear_error():
    async def scenario():
        async with serving() as (_, address):
            face = service.VerifyService(None, None, None, Tenants())
            with pytest.raises(OpenSledError, match="cannot listen"):
                await service.start(face, address, None)

    asyncio.run(scenario())
