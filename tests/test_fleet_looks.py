"""Looks at the fleet: what they cost while sequences come and go, and that they tell what a scraper reads."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from opensled.core.errors import Unsupported
from opensled.core.messages import Draft, DraftBlock, DraftToken, Open
from opensled.metrics.exposition import MetricsPort
from opensled.metrics.registry import Histogram, Metric
from opensled.metrics.scrape import scrape
from tests.fakes import continuation
from tests.pace import units
from tests.serving import GREEDY, PROMPT, linked
from tests.system import until
from tests.test_fleet import answered, fleet
from verify_server.admission.session_manager import SessionLimits
from verify_server.cluster.gateway import GatewayStats
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.front.fleet import MAX_ROWS, GatewayView, sample
from verify_server.front.server_metrics import metrics
from verify_server.round.budget import MAX_DEVICES


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
            told = look()
            assert sum(row["sessions"] for row in told["devices"]) <= 8
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
        port = MetricsPort("127.0.0.1:0", [*told, *with_nan])
        try:
            scraped = await asyncio.to_thread(scrape, port.address)
        finally:
            port.close()
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
