"""The soak's operator at the page notices a switch that does nothing, and a page that lets strangers in."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lab.testbed.soak import page_strike
from lab.testbed.soak.page_strike import use_page
from opensled.core.errors import OpenSledError
from opensled.core.messages import SamplingParams
from tests.fake_target import cycle
from tests.fakes import OracleDrafter
from tests.gated_target import SlowEngine
from tests.http_serving import CONFIG, http_serving
from tests.loops import cancelled, in_loop
from tests.page_world import quick_looks
from tests.serving import linked
from tests.system import ask
from verify_server.front.fleet import FleetView
from verify_server.front.operators import Operators
from verify_server.round.budget import DraftBudget


@asynccontextmanager
async def target(tmp_path):
    """A server with a page, and a device that answers on and on."""
    keys = tmp_path / "keys"
    keys.write_text("operator\n")
    keys.chmod(0o600)
    engine = SlowEngine(num_blocks=4000, context_length=8000, target=cycle)
    config = replace(CONFIG, operator_keys=str(keys))
    async with http_serving(config, engine=engine) as (_, grpc, address), linked(grpc) as link:
        params = SamplingParams(temperature=0, max_tokens=7000)
        drafter = OracleDrafter(0.9, target=cycle)
        asking = asyncio.ensure_future(ask(link, (3, 1, 4), drafter, params, device="kitchen"))
        kind = SimpleNamespace(http=True, replicas=0)
        yield SimpleNamespace(http=address, operator="operator", kind=kind, parts={})
        assert not asking.done()
        await cancelled(asking)


@in_loop
async def strike(tmp_path):
    async with target(tmp_path) as one:
        await asyncio.wait_for(use_page(one), 20)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    quick_looks(monkeypatch, 0.1)
    monkeypatch.setattr(page_strike, "SEEN_S", 2.0)
    monkeypatch.setattr(page_strike, "PERIODS", 1)


def test_a_page_that_works(tmp_path):
    strike(tmp_path)


@pytest.mark.parametrize(
    ("owner", "name", "fault", "told"),
    [
        (FleetView, "switch", lambda *_: None, "drafts stay on"),
        (DraftBudget, "longest", lambda self, wanted, *_: wanted, "verified while they are switched off"),
        (Operators, "admit", lambda *_: None, "a stranger's switch is answered"),
    ],
)
def test_a_page_with_a_fault(owner, name, fault, told, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(OpenSledError, match=told):
        strike(tmp_path)
