"""A real gRPC server over a fake target, and links to it."""

import asyncio
import time
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import grpc

from edge_client.link.link import Endpoint, Link
from hw_profiles.step_cost import HardwareProfile
from lab.benchmarks.attacks.connection import Lost
from opensled.core.errors import Unreachable
from opensled.core.messages import Failure, Open, Prefill, SamplingParams, Verdict
from opensled.wire import codec
from scheduler.fcfs import Fcfs
from tests.fakes import FakeEngine, FakeText
from tests.loops import cancelled
from tests.rounds import looping
from tests.system import until
from verify_server.access.client_limits import ClientLimits, message_bytes
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.front import service
from verify_server.front.hand_out import hand_out_nothing
from verify_server.round.loaded_model import ServedModel
from verify_server.start.command import describe

GREEDY = SamplingParams(temperature=0, max_tokens=20)
PROMPT = (3, 1, 4)


@asynccontextmanager
async def serving(
    tenants=Tenants(),
    tls=None,
    limits=SessionLimits(max_sessions=3, max_draft=8, linger=0.05),
    engine=None,
    text=None,
    policy=Fcfs(float("inf")),
    client_limits=ClientLimits(),
    port=0,
    beside=lambda service, manager: nullcontext(),
    manager_of=SessionManager,
    drafts=hand_out_nothing,
    pads=False,
):
    """A server on that port, 0 = a free one; yields (manager, address). `beside`: what runs as long as it does;
    `manager_of`: loop, target and limits -> manager; `drafts`: what is handed out;
    `pads`: as of `describe`."""
    target = ServedModel("fake", engine or FakeEngine(num_blocks=100), text or FakeText())
    loop = looping(target.engine, policy, HardwareProfile(64), time.monotonic, learns=True)
    manager = manager_of(loop, target, limits)
    size = message_bytes(manager.sequence_limits.context_length, manager.inputs.vocab_size)
    face = service.VerifyService(
        manager,
        describe(manager, target, pads),
        target.text,
        tenants,
        replace(client_limits, message_bytes=size),
        drafts,
    )
    server, port = await service.start(face, f"127.0.0.1:{port}", tls)
    running = asyncio.ensure_future(loop.run())
    try:
        async with beside(face, manager):
            yield manager, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        await cancelled(running)
        loop.close()


@asynccontextmanager
async def handling(sequence, tls=None, **unaries):
    """A gRPC server whose sequences are handled so, and other calls by `unaries`; yields its address."""
    calls = {"Sequence": grpc.stream_stream_rpc_method_handler(sequence), **unaries}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(codec.SERVICE_NAME, calls),))
    if tls:
        credentials = grpc.ssl_server_credentials([(tls.identity.key, tls.identity.cert)])
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def linked(address, **options):
    link = Link(Endpoint(address, timeout=5.0, **options))
    try:
        yield link
    finally:
        await link.close()


async def first_reply(link, *messages):
    """Send messages on a new stream, on another one where gRPC lost a status; the first error, or the last reply."""
    stream = link.connect()
    try:
        for message in messages:
            await stream.send(message)
    except Unreachable as error:
        if "Internal error from Core" not in str(error.__cause__):
            raise
        return await first_reply(link, *messages)
    reply = await stream.receive()
    while not isinstance(reply, Failure) and len(messages) > 1:
        reply = await stream.receive()
    await stream.close()
    return reply


async def blocks_return(manager):
    """Every KV block comes back once the sequences are over."""
    pool = manager.loop.machine.target.pool
    await until(lambda: pool.num_free == pool.num_blocks)


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
        if isinstance(verdict, Prefill):
            continue
        assert isinstance(verdict, Verdict) and verdict.base == len(opened.prompt_ids) + len(tokens)
        tokens += verdict.tokens
        if verdict.finish_reason:
            await stream.close()
            return opened, tokens


async def opened_at(replica):
    """A session at a replica whose reader has gone without a word; its resume token."""
    async with linked(replica.address) as link:
        stream = link.connect()
        await stream.send(Open(PROMPT, SamplingParams(temperature=0, max_tokens=150)))
        opened = await stream.receive()
        await stream.close()
        return opened.resume_token


def again(work, peer, running, tally):
    while running():
        try:
            work(peer, running, tally)
        except (Lost, OSError):
            tally["lost"] += 1


TENANTS = Tenants((("a good token", "attacker"), ("another token", "victim")))
