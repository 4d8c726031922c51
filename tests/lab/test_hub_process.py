"""The hubs of an emulated fleet: what they are started with, and a short run that the simulator foretells."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import fields, replace

import pytest

from lab.testbed.emulation.emulated_accelerator import VARIABLE, environment, settings
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.fleet import Fleet, Group, Hub, Server
from lab.testbed.load.hub_process import _as_server, command, linked
from lab.testbed.load.load import Load
from lab.testbed.load.run import label, run_fleet
from lab.testbed.load.server_process import MAX_SESSIONS, serving
from lab.testbed.simulated.compare import compare
from lab.testbed.simulated.hierarchy import recordings
from lab.testbed.simulator import simulate
from opensled.core.errors import UsageError
from relay.config import RelayConfig

HUB = Hub(accelerator="strix-halo", context=1024, link="wan-20", policy="fcfs", block=4, bound=0.3)


def test_a_hub_is_told_what_the_fleet_says():
    verb, *words = command(HUB, "hub-1", "127.0.0.1:7", dilation=4.0)
    told = {name.removeprefix("--").replace("-", "_"): value for name, value in zip(words[::2], words[1::2])}
    assert verb == "relay" and told.keys() <= {each.name for each in fields(RelayConfig)}
    assert (told["upstream"], told["name"], told["block"], told["bound"]) == (
        "127.0.0.1:7",
        "hub-1",
        "4",
        "0.3",
    )
    assert (told["model"], told["policy"]) == ("tiny-hub", "fcfs")
    assert float(told["draft_wait"]) == 4 * HUB.draft_wait
    assert int(told["max_sessions"]) == min(MAX_SESSIONS, HUB.sessions_that_fit)


def test_its_accelerator_stands_for_the_hub(monkeypatch):
    for name, value in environment(_as_server(HUB), 4.0).items():
        monkeypatch.setenv(name, value)
        assert name == VARIABLE and json.loads(value)["target"] == "draft-3b"
    server, dilation, _ = settings()
    assert server.cost == HUB.cost and dilation == 4.0


async def test_several_links_lead_to_an_address_one_after_another():
    async with AsyncExitStack() as stack:
        first = await linked("wifi-good+wan-20", "127.0.0.1:7", 1.0, 0, stack)
        assert first is not None and first.profile.id == "wifi-good"
        assert await linked("", "127.0.0.1:7", 1.0, 0, stack) is None
        address, to = first.address, ":".join(map(str, first.to))
    assert "127.0.0.1:7" not in (address, to)  # but the second link's


async def test_a_hub_makes_a_run_emulated_and_others_are_simulated_alone():
    here = Fleet(Server(), (Group(),))
    assert label(here) == "real"
    assert label(replace(here, hub=HUB)) == "emulated"
    with pytest.raises(UsageError, match="others"):
        async with serving(Server(accelerator="h200", others=3)):
            pass


@pytest.mark.long
def test_a_real_relay_on_emulated_machines_does_what_the_simulator_says():
    server = Server(accelerator="a100-80", target="dense-32b", context=1024, draft_wait=2.0)
    group = Group(2, "orin-nano-super", "ethernet", draft="135m", look_ahead=True)
    fleet = Fleet(server, (group,), 8.0, replace(HUB, draft_wait=2.0))
    traces, load = recordings().tiers, Load(warmup=1.0, duration=5.0)
    emulated = asyncio.run(run_fleet(fleet, recorded_items(), traces, load))
    assert {record.error for record in emulated.requests} == {""}
    assert emulated.hubs.tokens > emulated.server.tokens > 0
    figures = compare(emulated, simulate(fleet, traces, load))
    assert abs(figures["throughput"]["error"]) < 0.15
    assert abs(figures["positions_per_token"]["error"]) < 0.15
