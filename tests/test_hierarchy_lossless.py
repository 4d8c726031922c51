"""Losslessness behind a relay: three real models over a lossy link, against the reference of the top one alone."""

import asyncio

import pytest

from opensled.models.store import model_path
from tests.fakes import Weather
from tests.lossless import STORM, cases, check, factory, rarely
from tests.system import ask
from tests.three_tiers import IMPATIENT, tiers
from verify_server.engine.torch.torch_engine import load


@pytest.fixture(scope="module")
def middle():
    return load(str(model_path("tiny-draft")), device="cpu", dtype="float32", kv_tokens=8192)


async def answer_all(top, middle, wanted, drafter, **options):
    async with tiers(top, middle, draft_wait=0.5, **options) as (network, _, upper):
        asked = [
            ask(network, case.prompt, factory(drafter).create(), case.params, patience=IMPATIENT)
            for case in wanted
        ]
        return await asyncio.gather(*asked), upper


@pytest.mark.parametrize(
    ("drafter", "weather"),
    [
        ("none", Weather()),
        ("lookup", Weather()),
        ("onnx", Weather()),
        ("llamacpp", STORM),
        *rarely(("none", STORM)),
    ],
    ids=["none", "lookup", "onnx", "llamacpp in a storm", "none in a storm"],
)
def test_sixteen_mixed_sessions(exact64, middle, drafter, weather):
    answers, upper = asyncio.run(
        answer_all(exact64, middle, cases(), drafter, weather=weather, above=weather)
    )
    check(cases(), answers)
    if weather is STORM:
        return  # which loses blocks, and lets the target write what they were for
    drafts = upper.manager.loop.machine.stats.drafts
    assert drafts.accepted > 0.2 * drafts.tokens  # what the relay vets is of use
