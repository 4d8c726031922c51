"""GetDraft over gRPC: each tenant its own, within limits, while answers go on."""

import asyncio
import time
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

import grpc
import pytest

from adapt.handout import hand_out as module
from adapt.shelf import draft_fetch
from adapt.shelf.command import fetch_draft
from adapt.shelf.signature import Signer
from opensled.core.errors import (
    InvalidRequest,
    NotFound,
    OpenSledError,
    Overloaded,
    Unauthorized,
    Unsupported,
)
from opensled.models import store
from opensled.wire.codec import SERVICE_NAME
from opensled.wire.draft_codec import draft_request
from tests.ended import used_mb
from tests.fakes import continuation
from tests.handed_out import KEY, KITCHEN, WEIGHTS, hand_out, handed, manifest, store_with
from tests.loops import cancelled
from tests.replicas import Cluster
from tests.serving import GREEDY, PROMPT, finish, linked, serving
from tests.system import until
from verify_server.access.client_limits import ClientLimits, Rate
from verify_server.access.security import Tenants
from verify_server.front import service
from verify_server.front.hand_out import hand_out_nothing
from verify_server.options.serve_config import ServeConfig

TENANTS = Tenants((("k", "kitchen"), ("g", "garage"), ("u", "unread")))
MAX_MB = 60  # of growth under a flood
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(draft_fetch, "PAUSE", 0.01)


async def parts(link, file="", offset=0):
    async with aclosing(link.draft_parts(file, offset)) as replies:
        return [reply async for reply in replies]


def begun(channel, file, token):
    """A transfer that has begun, and that nobody reads."""
    ask = channel.unary_stream(f"/{SERVICE_NAME}/GetDraft")
    return ask(draft_request(file).SerializeToString(), metadata=(("authorization", f"Bearer {token}"),))


async def test_each_tenant_gets_its_own_or_none(tmp_path):
    drafts = store_with(tmp_path / "store", manifest(3))
    other = store_with(tmp_path / "store", manifest(tenant="garage"), content=WEIGHTS[:5])
    assert other.newest("garage") and drafts.newest("kitchen")
    async with serving(TENANTS, drafts=hand_out(drafts).serve) as (_, address):
        async with linked(address, token="k") as link:
            kept, fetched = await fetch_draft(link, KITCHEN)
            assert fetched and kept.draft.serial == 3
            assert store.model_file("adapted", "*.gguf").read_bytes() == WEIGHTS
            assert b"".join(await parts(link, handed().sha256, 262_000)) == WEIGHTS[262_000:]
            with pytest.raises(NotFound, match="no such file"):  # of the other tenant
                await parts(link, handed(WEIGHTS[:5]).sha256)
            with pytest.raises(InvalidRequest, match="262144 bytes"):
                await parts(link, handed().sha256, 262_145)
            with pytest.raises(InvalidRequest, match="leave offset out"):
                await parts(link, "", 5)
            with pytest.raises(InvalidRequest, match="64 hex"):
                await parts(link, "../../../etc/passwd")
        async with linked(address, token="g") as link:
            with pytest.raises(OpenSledError, match="for devices of 'garage'"):
                await fetch_draft(link, KITCHEN)
            with pytest.raises(NotFound, match="no such file"):
                await parts(link, handed().sha256)
            kept, _ = await fetch_draft(link, replace(KITCHEN, tenant="garage"))
            assert kept.draft.tenant == "garage"
        async with linked(address, token="x") as link:
            with pytest.raises(Unauthorized):
                await parts(link)


async def test_a_gateway_hands_out_what_it_has_itself(tmp_path):
    drafts = store_with(tmp_path / "store", manifest())
    one = Cluster(ServeConfig(drafts=str(drafts.folder)), TENANTS)
    await one.open_gateway()
    try:
        async with linked(one.address, token="k") as link:
            assert b"".join(await parts(link, handed().sha256)) == WEIGHTS
        async with linked(one.address, token="g") as link:
            with pytest.raises(NotFound, match="device's tenant"):
                await parts(link)
    finally:
        await one.serving.stop()


def test_without_drafts_the_answer_says_so(tmp_path):
    async def main(drafts, said):
        async with serving(TENANTS, drafts=drafts) as (_, address), linked(address, token="g") as link:
            with pytest.raises(NotFound, match=said):
                await fetch_draft(link, Signer("garage", KEY.public))

    asyncio.run(main(hand_out_nothing, "hands out no drafts"))
    asyncio.run(main(hand_out(store_with(tmp_path / "store", manifest())).serve, "device's tenant"))


async def test_what_is_published_while_a_server_runs_is_handed_out(tmp_path):
    drafts = store_with(tmp_path / "store")
    async with (
        serving(TENANTS, drafts=hand_out(drafts).serve) as (_, address),
        linked(address, token="k") as link,
    ):
        with pytest.raises(NotFound):
            await fetch_draft(link, KITCHEN)
        store_with(tmp_path / "store", manifest())
        assert (await fetch_draft(link, KITCHEN))[1]
        drafts.delete("kitchen")
        with pytest.raises(NotFound):
            await parts(link)


@pytest.mark.parametrize("content", [WEIGHTS[:100_000], None])
async def test_a_file_that_is_damaged_on_the_server(tmp_path, content):
    drafts = store_with(tmp_path / "store", manifest())
    [file] = (drafts.folder / "files").iterdir()
    file.write_bytes(content) if content else file.unlink()
    async with (
        serving(TENANTS, drafts=hand_out(drafts).serve) as (_, address),
        linked(address, token="k") as link,
    ):
        with pytest.raises(NotFound, match="missing or damaged on the server"):
            await fetch_draft(link, KITCHEN)
        assert (await finish(link))[1] == continuation(PROMPT, GREEDY.max_tokens)


async def test_all_transfers_share_one_rate(tmp_path):
    drafts = store_with(tmp_path / "store", manifest())
    rate = 4e5
    async with (
        serving(TENANTS, drafts=hand_out(drafts, rate).serve) as (_, address),
        linked(address, token="k") as one,
        linked(address, token="k") as two,
    ):
        began = time.monotonic()
        await asyncio.gather(parts(one, handed().sha256), parts(two, handed().sha256))
        # A quarter of a second of it may come at once
        assert time.monotonic() - began > (2 * len(WEIGHTS) - rate / 4) / rate * 0.9


async def test_more_transfers_than_a_client_may_have_are_refused_with_a_time(tmp_path):
    drafts = store_with(tmp_path / "store", manifest())
    out = hand_out(drafts, 1000.0)
    async with serving(TENANTS, drafts=out.serve) as (_, address), AsyncExitStack() as stack:
        links = [await stack.enter_async_context(linked(address, token="k")) for _ in range(5)]
        running = [asyncio.ensure_future(parts(link, handed().sha256)) for link in links[1:]]
        await until(lambda: out._transfers[""] == module.MAX_OF_CLIENT)
        with pytest.raises(Overloaded, match="too many transfers") as refused:
            await parts(links[0])
        assert refused.value.retry_after == module.RETRY_S and out._met["drafts"] == 1
        for task in running:
            task.cancel()
        await until(lambda: not out._transfers)
        assert await parts(links[0])


async def test_transfers_that_end_at_once_take_no_time_of_others(tmp_path):
    """A tenant begins transfers and leaves, as often as its calls allow: the bytes that it never took are others'."""
    content = WEIGHTS * 4  # 1 MB
    drafts = store_with(tmp_path / "store", manifest(), manifest(tenant="garage"), content=content)
    file, rate = handed(content).sha256, 1e6

    async def hostile(address):
        """On a connection of its own, with more calls than one honest client may make, as from several addresses."""
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            while True:
                calls = [begun(channel, file, "g") for _ in range(module.MAX_OF_CLIENT)]
                await asyncio.sleep(0.02)
                for call in calls:
                    call.cancel()

    limits = ClientLimits(calls=Rate(1e6, 1e6), refusals=Rate(1e6, 1e6), by_address=False)
    async with (
        serving(TENANTS, drafts=hand_out(drafts, rate).serve, client_limits=limits) as (_, address),
        linked(address, token="k") as link,
        flooding([hostile], address),
    ):
        await asyncio.sleep(0.5)
        began = time.monotonic()
        assert b"".join(await parts(link, file)) == content
        assert (time.monotonic() - began) < 5 * len(content) / rate * 1.5


async def test_an_older_server_is_named(monkeypatch):
    def without(face, server):
        calls = {"Describe": grpc.unary_unary_rpc_method_handler(face.Describe)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, calls),))

    monkeypatch.setattr(service.VerifyService, "add_to", without)
    async with serving() as (_, address), linked(address) as link:
        with pytest.raises(Unsupported, match="older than this device"):
            await fetch_draft(link, KITCHEN)


@asynccontextmanager
async def flooding(clients, address):
    """While inside, all of them run."""
    tasks = [asyncio.ensure_future(client(address)) for client in clients]
    try:
        yield
    finally:
        await cancelled(*tasks)


async def test_floods_of_transfers_stop_no_answer_and_take_no_memory(tmp_path, monkeypatch):
    """Devices that fetch in a loop, some that never read, some that are refused: answers of another tenant go on."""
    monkeypatch.setattr(service, "SILENT_S", 0.5)
    content = WEIGHTS * 32  # 8 MB
    drafts = store_with(tmp_path / "store", manifest(), manifest(tenant="unread"), content=content)
    file = handed(content).sha256

    async def greedy(address):
        async with linked(address, token="k") as link:
            while True:
                try:
                    await parts(link, file)
                except OpenSledError:
                    await asyncio.sleep(0.02)

    async def unread(address):
        """On a connection of its own that takes 64 KiB, and no more when others of this process read fast."""
        async with grpc.aio.insecure_channel(address, options=OWN_CONNECTION) as channel:
            calls = [begun(channel, file, "u") for _ in range(8)]
            await asyncio.sleep(60)
            assert calls

    limits = ClientLimits(farewell_s=0.5, by_address=False)
    async with (
        serving(TENANTS, drafts=hand_out(drafts, 2e7).serve, client_limits=limits) as (manager, address),
        linked(address, token="g") as link,
    ):
        await finish(link)
        before = used_mb()
        async with flooding([*[greedy] * 12, *[unread] * 4], address):
            await asyncio.sleep(0.3)
            began, count = time.monotonic(), 0
            while time.monotonic() - began < 1.5 or count < 3:
                answer = await asyncio.wait_for(finish(link), 20)
                assert answer[1] == continuation(PROMPT, GREEDY.max_tokens)
                count += 1
            grown = used_mb() - before
            await until(lambda: manager.stats.limited["silence"])
    assert grown < MAX_MB
