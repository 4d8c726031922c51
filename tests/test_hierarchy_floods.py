"""Floods on a relay meet the limits of any server, and the server above it notices no more of them than one tenant's
share.
"""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from edge_client.link.link import Link
from edge_client.link.remote import RetryPolicy
from lab.testbed.soak import floods
from opensled.core.errors import Overloaded
from opensled.core.messages import ChatMessage, Open, SamplingParams
from relay.opening import Relay
from relay.uplink import Upstream
from tests.fakes import FakeEngine, FakeText, OracleDrafter, continuation
from tests.loops import in_loop
from tests.serving import first_reply, linked, serving
from tests.system import ask, until
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits

GREEDY = SamplingParams(temperature=0, max_tokens=40)
PROMPT = [3, 1, 4]
GUESTS, HUB = 2, 8  # places of the guests at the relay, and of the relay at the server above
PATIENCE, HASTY = RetryPolicy(first_open=60.0), RetryPolicy(first_open=0.0)
BELOW = Tenants((("home", "home"), ("guest", "guest")), limits={"guest": TenantLimits(max_sessions=GUESTS)})
ABOVE = Tenants((("hub", "hub"), ("other", "other")), limits={"hub": TenantLimits(max_sessions=HUB)})


class ChatText(FakeText):
    """Renders chats as servers ask for it."""

    def render(self, messages, *more):
        return super().render(messages)


class Watch:
    """What the server above hears of a relay."""

    def __init__(self, link: Link) -> None:
        self._link, self.opened = link, Counter()  # Open messages, by the length of their prompt

    def connect(self, address=""):
        stream = self._link.connect(address)
        send = stream.send

        async def counted(message):
            if isinstance(message, Open):
                self.opened[len(message.prompt)] += 1
            await send(message)

        stream.send = counted
        return stream


def served(tenants):
    """How a server of these tenants is set up."""
    limits = SessionLimits(max_sessions=16, max_draft=8, linger=0.2, tenants=tenants)
    return {"tenants": tenants, "limits": limits, "engine": FakeEngine(num_blocks=300), "text": ChatText()}


@asynccontextmanager
async def hierarchy(below=BELOW):
    """Yields (relay's manager, its address, manager above, its address, watch)."""
    async with serving(**served(ABOVE)) as (upper, above), linked(above, token="hub") as link:
        watch = Watch(link)
        relays = []

        def manager_of(*given):
            relays.append(Relay(*given, Upstream(watch.connect, patience=PATIENCE)))
            return relays[0].manager

        async with serving(**served(below), manager_of=manager_of) as (manager, address):
            yield manager, address, upper, above, watch
            await until(lambda: not manager.remembered and not upper.remembered, 20)
            assert manager.loop.machine.target.pool.num_free == manager.loop.machine.target.pool.num_blocks
            await relays[0].stop()


async def max_places(upper):
    """The most places that the relay takes above, until cancelled."""
    most = 0
    try:
        while True:
            taken = [each.tenant for each in upper.loop.machine.sessions.values() if each.has_reader]
            most = max(most, taken.count("hub"))
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        return most


@in_loop
async def answers_beside(flooding, below=BELOW):
    """Runs `flooding(address of the relay)` beside a device of the relay and one of the server above, whose answers
    must be right; returns what it returns, the watch, and the most places that the relay had above."""
    async with asyncio.timeout(60), hierarchy(below) as (_, address, upper, above, watch):
        most = asyncio.ensure_future(max_places(upper))
        flood = asyncio.ensure_future(flooding(address))
        while not flood.done():
            async with linked(address, token="home") as near, linked(above, token="other") as far:
                asked = [
                    ask(link, PROMPT, OracleDrafter(0.7), GREEDY, patience=PATIENCE) for link in (near, far)
                ]
                for answer in await asyncio.gather(*asked):
                    assert list(answer.tokens) == continuation(PROMPT, 40)
        most.cancel()
        return await flood, watch, await most


async def crowd(address):
    """Many devices of the guest at once; the answer, or the error, of each."""
    async with linked(address, token="guest") as link:
        asked = [
            ask(link, [5, 5, seed, 7], OracleDrafter(0.7), GREEDY, patience=HASTY) for seed in range(1, 20)
        ]
        return await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize("kind", floods.FLOODS)
def test_a_flood_on_a_relay_hurts_neither_its_devices_nor_the_server_above(kind):
    counts, watch, most = answers_beside(lambda address: floods.run(kind, address, "guest", 0.5))
    assert sum(counts.values()) > 5
    assert most <= HUB  # those of its guests, of the device beside, and those that say farewell
    if kind in ("wrong tokens", "silent streams", "empty chats"):
        assert set(watch.opened) == {len(PROMPT)}, "of these the server above hears nothing"


def test_devices_beyond_their_places_are_sent_away_by_the_relay():
    answers, watch, most = answers_beside(crowd)
    refused = [each for each in answers if isinstance(each, Overloaded)]
    answered = [each for each in answers if not isinstance(each, BaseException)]
    assert len(refused) + len(answered) == len(answers) and refused and answered
    assert watch.opened[4] == len(answered) and most <= GUESTS + 1


def test_where_the_relay_has_no_limits_its_share_above_is_the_limit():
    answers, _, most = answers_beside(crowd, Tenants(BELOW.by_token))
    assert most <= HUB
    refused = [each for each in answers if isinstance(each, BaseException)]
    assert refused and all(isinstance(each, Overloaded) for each in refused)


def test_a_message_that_is_too_large_ends_at_the_relay():
    async def large(address):
        async with linked(address, token="guest") as link:
            return await first_reply(link, Open((ChatMessage("user", "x" * 100_000),), GREEDY))

    reply, watch, _ = answers_beside(large)
    assert reply.code == "invalid_request" and set(watch.opened) == {len(PROMPT)}
