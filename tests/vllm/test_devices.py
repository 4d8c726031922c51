"""Sessions of devices in vLLM's scheduler and in its front, without a vLLM."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Draft, DraftBlock, DraftToken, SamplingParams
from scheduler import make_policy
from scheduler.estimates import GUESS, DraftEstimate
from scheduler.plan import OfferView, PolicyOptions
from tests.fakes import FakeEngine
from tests.sessions import PROMPT, made
from verify_server.kv.memory import SequenceMemory
from verify_server.round.machine import StepMachine
from vllm_plugin import devices
from vllm_plugin.devices import Fleet
from vllm_plugin.loop import VllmLoop, VllmTarget
from vllm_plugin.messages import News, RequestTerms, encode
from vllm_plugin.selftest import VIEW

AT_ONCE = make_policy("fcfs", PolicyOptions(0.0))


def text_of(*ids):
    """vLLM's request whose text this is."""
    return SimpleNamespace(
        request_id="1",
        num_tokens=len(ids),
        all_token_ids=list(ids),
        num_output_tokens=1,
        num_output_placeholders=1,
        is_prefill_chunk=False,
    )


def test_a_draft_for_an_ended_session_is_dropped():
    fleet = Fleet(AT_ONCE, max_step_tokens=512)
    fleet.hear(encode([News("ended", VIEW, 4, (5, 6))]))
    assert not fleet.devices and not fleet.plan((0, 0, 0), 0.0)


@pytest.mark.parametrize(
    ("ids", "waits", "asked"), [((9, 8), None, 6.0), ((3, 8, 7), 1, 1.0)], ids=["wrong", "right"]
)
def test_a_draft_that_the_text_has_passed(ids, waits, asked):
    """What is left of it waits. If nothing is, its device is asked anew as soon as the front knows: after the step."""
    view = replace(
        VIEW, server_drives=False, device=OfferView(len(ids), GUESS, reach=(0.5,) * len(ids), asked_since=1.0)
    )
    fleet, text = Fleet(AT_ONCE, 512), text_of(1, 2, 3)
    device = fleet.add(text, RequestTerms("name", "front", "", 1, SamplingParams(), view))
    device.hear(News("name", view, 2, ids), 5.0)
    assert (device.view.device.tokens or 0) == len(device.draft) == 2 * (ids[0] == 3)
    text.num_tokens, text.all_token_ids = 4, [1, 2, 3, 8]
    device.grow(6.0, verified=False)
    offer = device.view.device
    assert (offer.tokens, len(offer.reach), offer.asked_since) == (waits, waits or 0, asked)


class Drafting:
    """A session whose device is at work on a draft: it is told to take 0.1 s, from each token of the text on."""

    view = replace(
        VIEW, server_drives=False, device=OfferView(forecast=GUESS._replace(delay_s=0.1, draft_s=0.0))
    )

    def __init__(self, fleet, name="name"):
        self.fleet, self.name, self.text = fleet, name, text_of(1, 2, 3)
        self.text.request_id = name
        self.device = fleet.add(self.text, RequestTerms(name, "front", "", 1, SamplingParams(), self.view))

    def grow(self, now):
        """A step is over that held its draft, if it has one."""
        self.text.all_token_ids.append(8)
        self.text.num_tokens += 1
        self.device.grow(now, verified=True)

    def hear(self):
        """A draft arrives."""
        self.fleet.hear(encode([News(self.name, self.view, self.text.num_tokens, (8, 8))]))


@pytest.mark.parametrize("comes", [True, False])
def test_now_and_then_a_step_waits_for_most_drafts_and_more_rarely_where_they_do_not_come(comes):
    fleet, waited = Fleet(make_policy("fcfs", PolicyOptions(float("inf"))), 512), []
    ready, late = Drafting(fleet), Drafting(fleet, "late")
    for step in range(200):
        ready.hear()
        chosen = fleet.plan((0, 0, 0), 2.0 * step)
        if not chosen:
            waited.append(step)
            if comes:
                late.hear()
            chosen = fleet.plan((0, 0, 0), 2.0 * step if comes else fleet.wake_at)
        for each in (ready, late):
            if each.name in chosen:
                each.grow(2.0 * step + 1.0)
    assert waited == ([*range(15, 200, 15)] if comes else [15, 46, 109])


@pytest.mark.parametrize(
    ("left", "heard", "delay"),
    [(0.4, 0.3, 0.3), (0.02, 0.3, 0.1), (0.2, 0.5, 0.2)],
    ids=["late", "not waited for", "a step came"],
)
def test_a_draft_is_late_by_as_much_as_no_step_took(monkeypatch, left, heard, delay):
    """`left`: seconds to the step without it; one before the time told for the draft teaches nothing."""
    now, one = 0.0, Drafting(Fleet(AT_ONCE, 512))
    monkeypatch.setattr(devices.time, "monotonic", lambda: now)
    one.grow(now)
    if left < heard:
        assert one.fleet.plan((0, 0, 0), left)
    now = heard
    one.hear()
    assert one.device.view.device.forecast.delay_s == pytest.approx(delay)


class Client:
    """vLLM's client that writes a token at a time, each after a draft whose first token is right as often as wrong."""

    engine_core = SimpleNamespace()

    def __init__(self):
        self.random, self.session = random.Random(1), None

    async def generate(self, prompt, params, request_id):
        for place in range(params.max_tokens):
            base = len(self.session.sequence.tokens)
            id = self.random.choice((5, 6))
            self.session.submit(
                Draft(place + 1, DraftBlock(base, (DraftToken(id, 0.55), DraftToken(6, 0.55)))), 0.0
            )
            choice = SimpleNamespace(token_ids=[5], finish_reason=None, logprobs=None)
            yield SimpleNamespace(outputs=[choice], num_cached_tokens=0)


async def test_a_draft_that_comes_true_before_a_step_verifies_it_counts_as_one_that_does_not():
    client, estimate = Client(), DraftEstimate()
    machine = StepMachine(VllmTarget(FakeEngine().info), AT_ONCE, HardwareProfile(64))
    loop = VllmLoop(machine, client, lambda: 0.0)
    client.session = made(1, PROMPT, 400, SequenceMemory(), estimate=estimate)
    loop.attach(client.session, len(PROMPT))
    await asyncio.gather(*[each.task for each in loop._writing.values()])
    assert 0.4 < estimate.device.confidences.chance(0.55) < 0.6
