"""The gateway: where it sends a sequence, what it passes on, and whom it lets in."""

import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from opensled.core.errors import Unauthorized, Unreachable
from opensled.core.messages import Failure, Moved, Open, Opened, SamplingParams
from opensled.wire import codec
from tests.certificates import AUTHORITY, HERE, issued, written
from tests.fakes import continuation
from tests.raw_wire import raw_stream
from tests.replicas import KEY, cluster
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked, opened_at
from tests.system import until
from verify_server.access.security import Tenants, Tls
from verify_server.access.signing import GatewayCredentials, TokenSigner

TOKENS = Tenants((("secret-1", "alice"), ("secret-2", "bob")))
LONG = SamplingParams(temperature=0, max_tokens=150)


async def test_an_open_is_answered_with_the_replica_that_serves_it_soonest():
    async with cluster("a", "b") as one, linked(one.address) as link:
        moved = await first_reply(link, Open(PROMPT, GREEDY))
        assert isinstance(moved, Moved) and moved.address in (one["a"].address, one["b"].address)
        async with linked(moved.address) as direct:
            _, tokens = await finish(direct, Open(PROMPT, GREEDY, resume_token=moved.resume_token))
        assert tokens == continuation(PROMPT, 20)
        # The heartbeats know nothing of the first one yet, and still the second goes elsewhere.
        other = await first_reply(link, Open((7, 7, 7), GREEDY))
        assert {moved.address, other.address} == {one["a"].address, one["b"].address}
        assert sum(one.serving.gateway.stats.placed.values()) == 2


async def test_a_resumed_sequence_goes_where_it_is_remembered_and_keeps_its_token():
    async with cluster("a", "b") as one, linked(one.address) as link:
        for name in ("a", "b", "b", "a"):
            token = await opened_at(one[name])
            moved = await first_reply(link, Open(PROMPT, GREEDY, resume_token=token))
            assert moved == Moved(one[name].address, b"")


async def test_a_device_that_did_not_find_its_replica_is_sent_to_another():
    async with cluster("a", "b") as one, linked(one.address) as link:
        for token in [await opened_at(one["a"]) for _ in range(3)]:
            request = Open(PROMPT, GREEDY, resume_token=token)
            assert (await first_reply(link, request)).address == one["a"].address
            other = await first_reply(link, request)
            assert other.address == one["b"].address and other.resume_token
            # Not there either: back to the first one, whatever his own token says by now.
            back = await first_reply(link, Open(PROMPT, GREEDY, resume_token=other.resume_token))
            assert back.address == one["a"].address


async def test_with_one_replica_left_a_device_is_sent_there_again_and_again():
    async with cluster("a") as one, linked(one.address) as link:
        request = Open(PROMPT, GREEDY, resume_token=await opened_at(one["a"]))
        for _ in range(3):
            assert (await first_reply(link, request)).address == one["a"].address


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
async def test_a_dead_replica_is_left_out_before_its_heartbeats_stop(proxy):
    async with cluster("a", "b", proxy=proxy) as one, linked(one.address) as link:
        token = await opened_at(one["a"])
        await one["a"].stop()
        await until(lambda: one.seen == {"b"})
        request = Open(PROMPT, GREEDY, resume_token=token)
        if proxy:
            assert (await finish(link, request))[1] == continuation(PROMPT, 20)
        else:
            assert (await first_reply(link, request)).address == one["b"].address


@pytest.mark.parametrize("drained", [False, True], ids=["killed", "drained"])
async def test_a_device_that_is_faster_than_the_news_is_not_sent_to_a_lost_replica(drained):
    async with cluster("a", "b") as one, linked(one.address) as link:
        tokens = [await opened_at(one["a"]) for _ in range(2)]
        blind = one.serving.gateway.links.of(one["a"].heartbeat())
        blind._set = lambda serving: None  # it never learns that the replica changed
        assert (await first_reply(link, Open(PROMPT, GREEDY, resume_token=tokens[0]))).address == one[
            "a"
        ].address
        await (one["a"].readiness.set(False) if drained else one["a"].stop())
        assert one.seen == {"a", "b"}
        assert (await first_reply(link, Open(PROMPT, GREEDY, resume_token=tokens[1]))).address == one[
            "b"
        ].address


async def test_a_draining_replica_is_left_out_and_its_readers_are_sent_back():
    async with cluster("a", "b") as one, linked(one.address) as link, linked(one["a"].address) as direct:
        stream = direct.connect()
        await stream.send(Open(PROMPT, LONG))
        assert isinstance(await stream.receive(), Opened)
        draining = asyncio.ensure_future(one["a"].drain())
        tokens = []
        while not isinstance(message := await stream.receive(), Moved):
            tokens += message.tokens
        assert message == Moved("", b"") and tokens == continuation(PROMPT, len(tokens))
        await stream.close()
        await draining
        await until(lambda: not one["a"].manager.remembered)  # its handler ends after the call
        await until(lambda: one.seen == {"b"})
        for _ in range(3):
            assert (await first_reply(link, Open(PROMPT, GREEDY))).address == one["b"].address


async def test_what_comes_to_a_replica_that_hands_over_is_sent_back():
    async with cluster("a") as one, linked(one["a"].address) as direct:
        away, reading = await opened_at(one["a"]), direct.connect()
        await reading.send(Open(PROMPT, LONG))
        present = (await reading.receive()).resume_token
        one["a"].manager.hand_over()
        for token in (b"", away, present):
            assert await first_reply(direct, Open(PROMPT, LONG, resume_token=token)) == Moved()
        await reading.close()


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
async def test_without_a_replica_it_says_when_to_try_again(proxy):
    async with cluster(proxy=proxy) as one, linked(one.address) as link:
        failure = await first_reply(link, Open(PROMPT, GREEDY))
        assert isinstance(failure, Failure) and failure.code == "overloaded" and failure.retry_after > 0
        with pytest.raises(Unreachable):
            await link.describe()
        assert one.serving.gateway.stats.refused["overloaded"] == 1


async def test_its_health_follows_that_of_the_replicas():
    async with cluster() as one, grpc.aio.insecure_channel(one.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=codec.SERVICE_NAME)
        )
        seen = [(await watch.read()).status]
        await one.add("a")
        seen.append((await watch.read()).status)
        await one["a"].readiness.set(False)
        seen.append((await watch.read()).status)
        await one["a"].readiness.set(True)
        seen.append((await watch.read()).status)
        status = health_pb2.HealthCheckResponse
        assert seen == [status.NOT_SERVING, status.SERVING] * 2
        watch.cancel()


async def test_describe_and_tokenizer_come_from_a_replica_which_is_asked_once():
    async with cluster("a", "b") as one, linked(one.address) as link, linked(one["a"].address) as direct:
        for _ in range(3):
            assert await link.describe() == await direct.describe()
            assert await link.tokenizer_json() == await direct.tokenizer_json()
        assert one["a"].calls + one["b"].calls == 2
        await one["a"].stop()
        await until(lambda: one.seen == {"b"})
        assert (await link.describe()).model_id == "fake"


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
async def test_who_has_no_token_gets_nothing(proxy):
    async with cluster("a", proxy=proxy, tenants=TOKENS) as one:
        for token in ("", "wrong"):
            async with linked(one.address, token=token) as link:
                for attempt in (link.describe, link.tokenizer_json):
                    with pytest.raises(Unauthorized):
                        await attempt()
                with pytest.raises(Unauthorized):
                    await first_reply(link, Open(PROMPT, GREEDY))
        assert one.serving.gateway.stats.refused["unauthorized"] == 6
        assert not one["a"].manager.stats.refused and not one.serving.gateway.stats.placed


async def test_the_address_for_gateways_admits_gateways_only():
    async with cluster("a", tenants=TOKENS) as one:
        bearer = GatewayCredentials(KEY, lambda: time.time() - 3600).header("alice").removeprefix("Bearer ")
        foreign = GatewayCredentials(b"another key", time.time).header("alice").removeprefix("Bearer ")
        resume = TokenSigner(time.time, 60, KEY, "a").sign(1, "alice").hex()
        for token in ("", "secret-1", bearer, foreign, resume):
            async with linked(one["a"].inner, token=token) as link:
                with pytest.raises(Unauthorized, match="only gateways"):
                    await link.describe()
                with pytest.raises(Unauthorized, match="only gateways"):
                    await first_reply(link, Open(PROMPT, GREEDY))


@pytest.mark.parametrize("proxy", [False, True], ids=["direct", "proxy"])
async def test_with_mutual_tls_the_tenant_is_the_one_of_the_certificate(proxy, tmp_path):
    """Which a gateway has not got itself, so that it could not come in by the replica's public manager."""
    tls = Tls(issued(AUTHORITY, HERE), AUTHORITY.cert_pem.bytes())
    own = {"tls": True, "tls_ca": written(tmp_path), "identity": issued(common_name="kitchen")}
    async with cluster("a", proxy=proxy, tenants=Tenants(by_certificate=True), tls=tls) as one:
        async with linked(one.address, **own) as link:
            if proxy:
                _, tokens = await finish(link)
            else:
                moved = await first_reply(link, Open(PROMPT, GREEDY))
                async with linked(moved.address, **own) as direct:
                    _, tokens = await finish(direct)
        assert tokens == continuation(PROMPT, 20)
        assert {session.tenant for session in one["a"].manager.remembered} == {"kitchen"}
        async with linked(one.address, tls=True, tls_ca=own["tls_ca"]) as link:
            with pytest.raises(Unreachable):
                await first_reply(link, Open(PROMPT, GREEDY))


@pytest.mark.parametrize(
    ("first", "code"),
    [(b"\xff", "invalid_request"), (b"", "invalid_request"), (b"\x1a\x00", "protocol")],
    ids=["no message", "empty", "cancel"],
)
async def test_a_stream_must_begin_with_an_open(first, code):
    async with cluster("a") as one, raw_stream(one.address) as stream:
        await stream.send(first)
        assert (await stream.receive()).code == code and one.serving.gateway.stats.refused[code] == 1


async def test_a_gateway_that_was_restarted_knows_what_the_old_one_knew():
    async with cluster("a", "b") as one:
        tokens = {name: await opened_at(one[name]) for name in ("a", "b")}
        await one.restart_gateway()
        await one.all_seen()
        async with linked(one.address) as link:
            for name, token in tokens.items():
                moved = await first_reply(link, Open(PROMPT, GREEDY, resume_token=token))
                assert moved == Moved(one[name].address, b"")


async def test_two_gateways_serve_the_same_replicas():
    async with cluster("a", proxy=True) as one:
        first = one.serving
        await one.open_gateway()
        await one.all_seen()
        try:
            for port in (first.port, one.serving.port):
                async with linked(f"127.0.0.1:{port}") as link:
                    assert (await finish(link))[1] == continuation(PROMPT, 20)
        finally:
            await first.stop()
