"""The gRPC face over a fake target: who gets in, what is refused, and that nobody else notices."""

import asyncio
import dataclasses

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from opensled import codec
from opensled.errors import (
    FutureBase,
    InvalidRequest,
    NotFound,
    Overloaded,
    ProtocolError,
    TruthConflict,
    Unsupported,
    VocabularyMismatch,
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
    RuleFacts,
)
from tests.fakes import VOCAB, FakeText, continuation
from tests.serving import GREEDY, PROMPT, blocks_return, finish, first_reply, linked, serving
from verify_server.session_manager import SessionLimits


def test_describe_tokenizer_health_and_reflection():
    async def scenario():
        async with serving() as (manager, address), linked(address) as link:
            info = await link.describe()
            assert (info.model_id, info.vocab_size) == ("fake", VOCAB)
            assert info.rules == (RuleFacts("match", lossless=True, trees=True, draft_probs=False),)
            assert info.limits == manager.sequence_limits
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
        async with serving() as (manager, address), linked(address) as link:
            _, tokens = await finish(link)
            assert tokens == continuation(PROMPT, 20)
            await blocks_return(manager)

    asyncio.run(scenario())


BAD_OPENS = {
    "empty prompt": (Open((), GREEDY), InvalidRequest, "prompt"),
    "id beyond the vocabulary": (Open((VOCAB,), GREEDY), InvalidRequest, "prompt"),
    "committed id beyond the vocabulary": (
        Open((1,), GREEDY, committed=(VOCAB,)),
        InvalidRequest,
        "committed",
    ),
    "prompt as long as the context": (Open((1,) * 200, GREEDY), InvalidRequest, "prompt"),
    "nothing left to generate": (Open((1,), GREEDY, committed=(2,) * 20), InvalidRequest, "max_tokens"),
    "another target": (Open((1,), GREEDY, model_id="other"), NotFound, "model_id"),
    "another vocabulary": (Open((1,), GREEDY, fingerprint="other"), VocabularyMismatch, ""),
    "unknown rule": (Open((1,), GREEDY, rule="telepathy"), Unsupported, "rule"),
}


@pytest.mark.parametrize("name", BAD_OPENS)
def test_a_bad_open_is_refused_by_name_and_touches_nobody(name):
    message, error, field = BAD_OPENS[name]

    async def scenario():
        async with serving() as (manager, address), linked(address) as link:
            other = asyncio.ensure_future(finish(link))
            reply = await first_reply(link, message)
            assert isinstance(reply, Failure)
            assert type(reply.error()) is error and reply.field == field
            assert (await other)[1] == continuation(PROMPT, 20)
            await blocks_return(manager)

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
        async with serving() as (manager, address), linked(address) as link:
            other = asyncio.ensure_future(finish(link))
            reply = await first_reply(
                link, Open((5, 6, 7), dataclasses.replace(GREEDY, max_tokens=120)), message
            )
            assert isinstance(reply, Failure) and type(reply.error()) is error
            assert (await other)[1] == continuation(PROMPT, 20)
            await blocks_return(manager)

    asyncio.run(scenario())


def test_the_first_message_must_be_open():
    async def scenario():
        async with serving() as (_, address), linked(address) as link:
            assert isinstance((await first_reply(link, Cancel())).error(), ProtocolError)

    asyncio.run(scenario())


def test_cancel_and_a_vanished_client_free_everything():
    async def scenario():
        async with serving() as (manager, address), linked(address) as link:
            for last_word in (Cancel(), None):
                stream = link.connect()
                await stream.send(Open(PROMPT, dataclasses.replace(GREEDY, max_tokens=150)))
                await stream.receive()
                if last_word:
                    await stream.send(last_word)
                await stream.close()
            await blocks_return(manager)

    asyncio.run(scenario())


def test_a_full_server_says_when_to_come_back():
    async def scenario():
        async with serving(limits=SessionLimits(max_sessions=0)) as (_, address), linked(address) as link:
            error = (await first_reply(link, Open(PROMPT, GREEDY))).error()
            assert isinstance(error, Overloaded) and error.retry_after > 0

    asyncio.run(scenario())


def test_a_resume_token_continues_and_supersedes_and_lies_are_refused():
    async def scenario():
        limits = SessionLimits(linger=30)
        async with serving(limits=limits) as (manager, address), linked(address) as link:
            opened, tokens = await finish(link)
            again = Open(opened.prompt_ids, GREEDY, tuple(tokens[:5]), noise_key=opened.noise_key)
            resumed, rest = await finish_known(
                link, dataclasses.replace(again, resume_token=opened.resume_token)
            )
            assert rest == tokens[5:] and resumed.noise_key == opened.noise_key
            assert len(manager.remembered) == 1
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
            def render(self, messages, tools=()):
                raise Unsupported("this target has no chat template; send text (--raw)", "messages")

        async with serving() as (manager, address), linked(address) as link:
            manager.inputs.text = Plain()
            reply = await first_reply(link, Open((ChatMessage("user", "hi"),), GREEDY))
            assert isinstance(reply.error(), Unsupported) and "--raw" in reply.reason

    asyncio.run(scenario())
