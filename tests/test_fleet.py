"""The fleet on a server's page: what is told of each device, the operator's switch, and what a look costs."""

import asyncio
import json
import time
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace

import pytest

from opensled.core.errors import NotFound, Unsupported
from opensled.core.messages import Draft, DraftBlock, DraftToken, HintReason, Open, SamplingParams
from opensled.drafting.status import why_at_rest
from opensled.metrics.exposition import MetricsPort
from opensled.metrics.registry import Histogram, Metric
from opensled.metrics.scrape import scrape
from scheduler.goodput.policy import Goodput
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.gated_target import SlowEngine
from tests.loops import cancelled
from tests.pace import units
from tests.serving import GREEDY, PROMPT, finish, linked, serving
from tests.system import ask, until
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.cluster.gateway import GatewayStats
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.front.fleet import LONGEST_NAME, MAX_ROWS, FleetView, GatewayView, drafts, sample
from verify_server.front.server_metrics import metrics
from verify_server.round.budget import MAX_DEVICES

LONG = SamplingParams(temperature=0, max_tokens=600)
TWO = Tenants((("token-a", "a"), ("token-b", "b")))
WIDE = SessionLimits(max_sessions=8, max_draft=8, linger=0.05)


@asynccontextmanager
async def fleet(slow=False, **options):
    """Yields (manager, address, view)."""
    engine = (SlowEngine if slow else FakeEngine)(num_blocks=1200, context_length=1000)
    async with serving(**{"engine": engine, "limits": WIDE, **options}) as (manager, address):
        yield manager, address, FleetView(metrics(manager), manager)


def rows(view):
    """The devices of one look, by tenant and name."""
    return {(row["tenant"], row["device"]): row for row in view.watcher()()["devices"]}


async def answered(address, device, params=GREEDY, acceptance=0.9, token=""):
    async with linked(address, token=token) as link:
        answer = await ask(link, PROMPT, OracleDrafter(acceptance, 1), params, device=device)
        return list(answer.tokens)


@asynccontextmanager
async def answering(address, *devices):
    """Long answers of these devices, all of them under way; yields their tasks."""
    tasks = [asyncio.ensure_future(answered(address, device, LONG)) for device in devices]
    try:
        yield tasks
    finally:
        await cancelled(*tasks)


# -- what is told -------------------------------------------------------------------------------------------------


async def test_a_look_is_json_before_anything_has_happened():
    async with fleet() as (_, _, view):
        look = json.loads(json.dumps(view.watcher()(), allow_nan=False))
        assert look["kind"] == "server" and look["devices"] == look["tenants"] == [] and not look["unlisted"]
        assert look["sessions"] == look["tokens_per_s"] == 0 and look["places"] == 8
        assert look["drafts"]["drafts"] == 0 and look["drafts"]["by_length"] == [0]


async def test_what_a_device_did():
    async with fleet(slow=True) as (manager, address, view):
        assert await answered(address, "kitchen") == continuation(PROMPT, 20)
        async with linked(address) as link:
            await finish(link)
        told = rows(view)
        kitchen, nameless = told["local", "kitchen"], told["local", ""]
        assert kitchen["tokens"] == nameless["tokens"] == 20
        assert kitchen["drafts"] > 0 and kitchen["drafted"] >= kitchen["accepted"] > 0
        assert kitchen["drafting"] and not kitchen["ignored"] and kitchen["sessions"] == 0
        assert kitchen["hint"] is None and 0 <= kitchen["age_s"] < 60
        assert kitchen["delay_s"] >= 0 and kitchen["draft_s"] >= 0
        assert nameless["drafts"] == nameless["drafted"] == 0 and nameless["delay_s"] is None
        look = json.loads(json.dumps(view.watcher()(), allow_nan=False))
        of_all = manager.loop.machine.stats.drafts
        assert (look["drafts"]["drafts"], look["drafts"]["accepted"]) == (of_all.drafts, of_all.accepted)
        assert kitchen["accepted"] <= of_all.accepted
        (tenant,) = look["tenants"]
        assert (tenant["tenant"], tenant["devices"], tenant["tokens"]) == ("local", 1, 40)


async def test_rates_are_since_the_last_look_of_this_watcher():
    async with fleet() as (_, address, view):
        first, second = view.watcher(), view.watcher()
        await answered(address, "kitchen")
        assert first()["tokens_per_s"] > 0
        assert first()["tokens_per_s"] == 0 and second()["tokens_per_s"] > 0


async def test_sequences_are_told_while_they_have_no_end():
    """A finished one waits to be read to its end, an absent one for its reader: only that one is under way."""
    limits = replace(WIDE, linger=30.0)
    async with fleet(slow=True, limits=limits) as (manager, address, view):
        assert await answered(address, "done")
        async with linked(address) as link:
            stream = link.connect()
            await stream.send(Open(PROMPT, LONG, device="absent"))
            await stream.receive()
            async with answering(address, "kitchen"):
                await until(lambda: rows(view).get(("local", "kitchen"), {"tokens": 0})["tokens"] > 20)
                await stream.close()
                await until(lambda: any(not session.has_reader for session in manager.remembered))
                told = rows(view)
                counts = [told["local", name]["sessions"] for name in ("kitchen", "absent", "done")]
                assert counts == [1, 1, 0]
                assert [device for _, device in told][-1] == "done"  # those with sequences come first
                (tenant,) = view.watcher()()["tenants"]
                assert tenant["sessions"] == 2 and tenant["kv_tokens"] > 0


async def test_the_hint_of_a_device_is_the_longest_of_its_sequences():
    async with (
        fleet(slow=True, policy=Goodput(30.0)) as (_, address, view),
        answering(address, "kitchen", "kitchen"),
    ):
        await until(lambda: rows(view).get(("local", "kitchen"), {}).get("hint") is not None)
        row = rows(view)["local", "kitchen"]
        assert row["sessions"] == 2 and 0 <= row["hint"] <= 8


async def test_devices_of_two_tenants_may_share_a_name():
    async with fleet(tenants=TWO, limits=replace(WIDE, tenants=TWO)) as (_, address, view):
        await answered(address, "kitchen", token="token-a")
        assert set(rows(view)) == {("a", "kitchen")}
        await answered(address, "kitchen", token="token-b")
        view.switch("a", "kitchen", False)
        told = rows(view)
        assert [told[tenant, "kitchen"]["drafting"] for tenant in "ab"] == [False, True]
        assert [row["tenant"] for row in view.watcher()()["tenants"]] == ["a", "b"]


async def test_a_device_whose_drafts_are_ignored_is_marked():
    async with fleet(slow=True) as (_, address, view):
        for _ in range(3):
            assert await answered(address, "liar", replace(GREEDY, max_tokens=60), 0.0)
        assert rows(view)["local", "liar"]["ignored"]


async def test_of_many_devices_the_latest_are_listed():
    async with fleet() as (manager, address, view):
        for number in range(MAX_DEVICES + 10):
            manager.records.of("local", f"d{number}")
        await answered(address, "kitchen")
        look = view.watcher()()
        assert len(look["devices"]) == MAX_ROWS and look["unlisted"] == MAX_DEVICES - MAX_ROWS
        assert [row["device"] for row in look["devices"][:2]] == ["kitchen", f"d{MAX_DEVICES + 9}"]
        assert look["tenants"][0]["devices"] == MAX_DEVICES


async def test_shares_by_place_and_counts_by_length_agree():
    async with fleet(slow=True) as (manager, address, view):
        await answered(address, "kitchen", replace(GREEDY, max_tokens=100), 0.6)
        counts, told = manager.loop.machine.stats.drafts, view.watcher()()["drafts"]
        assert sum(told["by_length"]) == told["drafts"] == counts.drafts
        assert sum(length * count for length, count in enumerate(told["by_length"])) == counts.accepted
        assert told["by_position"] == sorted(told["by_position"], reverse=True)
        assert drafts(counts) == told


# -- the switch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fcfs", "goodput"])
async def test_the_switch_stops_a_devices_drafts_and_changes_no_word(policy):
    options = {"policy": Goodput(30.0)} if policy == "goodput" else {}
    async with (
        fleet(slow=True, **options) as (manager, address, view),
        answering(address, "kitchen", "bath") as (kitchen, bath),
    ):
        await until(lambda: {("local", "kitchen"), ("local", "bath")} <= set(rows(view)))
        mine, other = (manager.records.known("local", name) for name in ("kitchen", "bath"))
        await until(lambda: mine.counts.drafts and other.counts.drafts)
        view.switch("local", "kitchen", False)
        assert not rows(view)["local", "kitchen"]["drafting"]
        rested = why_at_rest(HintReason("operator"))
        await until(lambda: rows(view)["local", "kitchen"]["why"] == rested)
        assert rows(view)["local", "kitchen"]["hint"] == 0 and rested in view.watcher()()["rests"]
        verified, theirs, tokens = mine.counts.drafts, other.counts.drafts, mine.tokens
        await until(lambda: mine.tokens > tokens + 40)
        assert mine.counts.drafts == verified
        view.switch("local", "kitchen", True)
        await until(lambda: rows(view)["local", "kitchen"]["why"] != rested)
        # The other policy asks for drafts where they pay, which a busy machine decides.
        if policy == "fcfs":
            assert other.counts.drafts > theirs
            await until(lambda: mine.counts.drafts > verified)
            assert rows(view)["local", "kitchen"]["hint"] != 0
        assert await kitchen == await bath == continuation(PROMPT, 600)


async def test_the_switch_holds_for_the_devices_next_answers():
    async with fleet(slow=True) as (manager, address, view):
        await answered(address, "kitchen")
        view.switch("local", "kitchen", False)
        record = manager.records.known("local", "kitchen")
        before = record.counts.drafts
        assert await answered(address, "kitchen") == continuation(PROMPT, 20)
        assert record.counts.drafts == before and rows(view)["local", "kitchen"]["tokens"] == 40


async def test_a_switch_is_forgotten_with_its_device():
    """Names cost nothing, so that no more of them are kept than MAX_DEVICES."""
    async with fleet() as (manager, address, view):
        await answered(address, "kitchen")
        view.switch("local", "kitchen", False)
        for number in range(MAX_DEVICES):
            manager.records.of("local", f"d{number}")
        with pytest.raises(NotFound):
            view.switch("local", "kitchen", True)
        await answered(address, "kitchen")
        assert manager.records.known("local", "kitchen").drafting


@pytest.mark.parametrize(
    ("tenant", "device"),
    [("local", "nobody"), ("other", "kitchen"), ("local", ""), ("", "kitchen"), ("<b>" * 99, "\x1b[2J" * 99)],
)
async def test_who_is_not_known_is_not_switched(tenant, device):
    async with fleet() as (_, address, view):
        await answered(address, "kitchen")
        async with linked(address) as link:
            await finish(link)
        with pytest.raises(NotFound) as refused:
            view.switch(tenant, device, False)
        words = str(refused.value)
        assert words.isprintable() and len(words) < 60 + 6 * LONGEST_NAME
        assert all(row["drafting"] for row in rows(view).values())


# -- what looks cost ----------------------------------------------------------------------------------------------


async def test_looks_while_sequences_come_and_go():
    async with fleet() as (manager, address, view):
        over, look, looks = asyncio.Event(), view.watcher(), 0

        async def come_and_go(number):
            while not over.is_set():
                asked = asyncio.ensure_future(
                    answered(address, f"d{number % 3}", replace(GREEDY, max_tokens=60))
                )
                await asyncio.wait({asked}, timeout=0.01 if number % 2 else 5)
                asked.cancel()
                with suppress(asyncio.CancelledError):
                    await asked

        crowd = [asyncio.ensure_future(come_and_go(number)) for number in range(6)]
        until_then = time.monotonic() + 1.0
        while looks < 20 or time.monotonic() < until_then:
            assert sum(row["sessions"] for row in look()["devices"]) <= 8
            if manager.records.known("local", "d1"):
                view.switch("local", "d1", bool(looks % 2))
            looks += 1
            await asyncio.sleep(0.001)
        over.set()
        await asyncio.gather(*crowd)
        await until(lambda: not manager.remembered)
        assert sum(row["sessions"] for row in look()["devices"]) == 0


@pytest.mark.timed
async def test_a_look_at_a_full_server_takes_milliseconds():
    limits = SessionLimits(max_sessions=256, linger=30)
    async with fleet(limits=limits) as (manager, _, view):
        manager.loop.wake = lambda: None  # nothing finishes
        for number in range(MAX_DEVICES - 256):
            manager.records.of(f"t{number % 700}", f"device {number}")
        for number in range(256):
            message = Open((*PROMPT, number % 40), GREEDY, device=f"at work {number}")
            session, _ = await manager.open(message, f"t{number % 700}")
            manager.loop.attach(session, 4)
        look = view.watcher()
        told = look()
        assert len(told["devices"]) == len(told["tenants"]) == MAX_ROWS
        assert sum(row["sessions"] for row in told["devices"]) == 256
        assert units(look) < 80


async def test_a_sample_is_what_a_scraper_reads():
    async with fleet() as (manager, address, _):
        await answered(address, "kitchen")
        told = metrics(manager)
        with_nan = [
            Metric("odd", "A number.", lambda: float("inf")),
            Metric("a_seconds", "A histogram.", filled),
        ]
        with closing(MetricsPort("127.0.0.1:0", [*told, *with_nan])) as port:
            scraped = await asyncio.to_thread(scrape, port.address)
        own = sample([*told, *with_nan])
        assert dict(own.values) == dict(scraped.values) and 0 <= own.at - scraped.at < 5


def filled():
    histogram = Histogram((1, 2))
    for value in (0.5, 1.5, 99):
        histogram.add(value)
    return histogram


def test_a_gateway_tells_of_its_replicas_and_switches_nothing():
    values = {"replica_sessions": {"a": 2.0}, "replica_places": {"a": 8.0}, "streams_lost_total": 1.0}
    view = GatewayView(
        [Metric(name, "A metric.", lambda value=value: value, "replica") for name, value in values.items()]
    )
    look = json.loads(json.dumps(view.watcher()(), allow_nan=False))
    assert look["kind"] == "gateway" and look["replicas"]["a"]["sessions"] == look["sessions"] == 2
    assert "devices" not in look and "tenants" not in look
    with pytest.raises(Unsupported, match="single server"):
        view.switch("a", "b", False)


def test_a_gateway_without_replicas_is_a_gateway():
    """Its page is drawn by another table than a server's."""

    class Nobody:
        def replicas(self):
            return []

    class Bare:
        stats = GatewayStats()

    look = GatewayView(gateway_metrics(Bare, Nobody())).watcher()()
    assert look["kind"] == "gateway" and look["replicas"] == {} and look["sessions"] == look["places"] == 0


@pytest.mark.parametrize("seconds", [1.7e308, 1e-320, 5.0])
async def test_a_device_that_lies_about_its_times_breaks_no_look(seconds):
    """A browser reads no infinity, and one row must not take the page from all."""
    async with fleet() as (_, address, view), linked(address) as link:
        stream = link.connect()
        await stream.send(Open(PROMPT, replace(GREEDY, max_tokens=80), device="liar"))
        truth = [*PROMPT]
        await stream.receive()
        for counter in range(1, 12):
            guess = continuation(truth, 2)
            block = DraftBlock(len(truth), tuple(map(DraftToken, guess)))
            await stream.send(Draft(counter, block, seconds))
            while True:
                verdict = await stream.receive()
                truth = [*truth[: verdict.base], *verdict.tokens]
                if verdict.answers == counter:
                    break
        look = json.loads(json.dumps(view.watcher()(), allow_nan=False))
        (row,) = look["devices"]
        assert row["drafts"] and 0 <= row["draft_s"] < 60 and 0 <= row["delay_s"] < 60
        await stream.close()
