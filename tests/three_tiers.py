"""Device, relay and target in one process, over links of any weather."""

import asyncio
import random
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace

from edge_client.device.device import Device
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RetryPolicy
from edge_client.offline.modes import STALL, Offline
from hw_profiles.step_cost import HardwareProfile
from opensled.core.answer import Task
from opensled.core.messages import SamplingParams
from relay.opening import Relay
from relay.uplink import Upstream
from scheduler.fcfs import Fcfs
from tests.devices import TOKENIZER, OracleFactory
from tests.fakes import VOCAB, FakeEngine, FakeText, MemoryNetwork, Weather, continuation, next_token
from tests.loops import cancelled
from tests.outages import INFO, Outages
from tests.rounds import looping
from tests.serving import PROMPT
from tests.system import FOREVER, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.round.loaded_model import ServedModel

IMPATIENT = RetryPolicy(silence=0.3, first_retry=0.001, slowest_retry=0.02, first_open=60.0, give_up=120.0)


@asynccontextmanager
async def tiers(
    top,
    middle,
    *,
    above=Weather(),
    draft_wait=FOREVER,
    limits=SessionLimits(linger=0.5),
    step_tokens=256,
    network_type=MemoryNetwork,
    **relay,
):
    """`top` and `middle`: engines. Yields (network to the relay, the relay, network to the target); on exit no
    tier may hold KV or a session."""
    shared = {"limits": limits, "draft_wait": draft_wait, "network_type": network_type}
    async with (
        running(top, weather=above, max_step_tokens=step_tokens, **shared) as upper,
        relaying(upper, middle, step_tokens=step_tokens, **shared, **relay) as (network, relayed),
    ):
        yield network, relayed, upper


@asynccontextmanager
async def relaying(
    upper,
    middle,
    *,
    weather=Weather(),
    block=4,
    bound=0.4,
    draft_wait=FOREVER,
    patience=IMPATIENT,
    limits=SessionLimits(linger=0.5),
    step_tokens=256,
    offline=STALL,
    network_type=MemoryNetwork,
):
    """A relay with the engine `middle` on the network `upper`; yields (network to the relay, the relay)."""
    loop = looping(
        middle, Fcfs(draft_wait), HardwareProfile(step_tokens), asyncio.get_running_loop().time, learns=True
    )
    upstream = Upstream(
        lambda address="": upper.connect(),
        block=block,
        bound=bound,
        patience=patience,
        offline=Offline(offline, look=0.01),
    )
    text = FakeText(middle.info.vocab_size)
    relay = Relay(loop, ServedModel("fake", middle, text), limits, upstream)
    network = network_type(relay.manager, weather)
    serving = asyncio.ensure_future(loop.run())
    try:
        yield network, relay
        await network.close()
        for session in list(relay.manager.remembered):
            relay.manager.forget(session)
        while loop.machine.target.pool.num_free < loop.machine.target.pool.num_blocks:
            assert not serving.done(), serving.result()
            await asyncio.sleep(0.001)
        await relay.stop()
    finally:
        await cancelled(serving)
        relay.manager.close()


def errs(share, seed=0):
    """A target that is another one than `next_token` at a share of all contexts."""

    def token(context):
        own = next_token(context)
        lot = random.Random(hash((seed, tuple(context)))).random()
        return own if lot >= share else 1 + (own + 3) % (VOCAB - 3)

    return token


LENGTH = 60
TASK = Task(PROMPT, SamplingParams(temperature=0.0, max_tokens=LENGTH))
EXPECTED = continuation(PROMPT, LENGTH)
MIDDLE = errs(0.2)  # what the relay's model says
QUICK = RetryPolicy(silence=20.0, first_retry=0.001, slowest_retry=0.004, first_open=0.03, give_up=60.0)


@asynccontextmanager
async def device(network, mode=STALL, takes_unverified=False, patience=QUICK, **offline):
    made = Device(
        network,
        INFO,
        TOKENIZER,
        OracleFactory(),
        FixedLength(4),
        8,
        patience,
        offline=Offline(mode, look=0.01, **offline),
        memory=SimpleNamespace(recall=lambda: None) if takes_unverified else None,
    )
    try:
        yield made
    finally:
        for drafter in made._idle:
            drafter.close()


async def read(made, task=TASK, each=None):
    """The chunks of an answer; `await each(chunk)` hears of them."""
    found = []
    async with aclosing(made.answer(task)) as chunks:
        async for chunk in chunks:
            found.append(chunk)
            if each is not None:
                await each(chunk)
    return found


def ids_of(chunks):
    return [id for chunk in chunks for id in chunk.token_ids]


def three(**options):
    return tiers(
        FakeEngine(num_blocks=200), FakeEngine(num_blocks=200, target=MIDDLE), network_type=Outages, **options
    )
