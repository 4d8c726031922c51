"""What the metrics tell of scheduling: who waits for what, hints, KV that was lost or shared; a gateway's own."""

from dataclasses import dataclass, replace

from hw_profiles.step_cost import HardwareProfile
from opensled.core.messages import Moved, Open, SamplingParams, Verdict
from scheduler.fcfs import Fcfs
from scheduler.plan import BatchPlan, Slice
from tests.fakes import FakeEngine, OracleDrafter
from tests.metric_tables import documented
from tests.replicas import cluster
from tests.scraping import samples, scrape
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked
from tests.sessions import Pressed
from tests.system import ask, running
from verify_server.cluster.gateway_metrics import gateway_metrics
from verify_server.front.server_metrics import metrics as server_metrics
from verify_server.front.server_metrics import waiting

POOL = {"num_blocks": 40, "block_size": 4}


def told(loop):
    """The reasons that somebody has."""
    return {reason: count for reason, count in waiting(loop).items() if count}


def test_everybody_who_is_not_in_the_step_waits_for_something():
    pressed = Pressed(100.0, [[number] * 6 for number in range(1, 8)], POOL)
    computed, late, device, reader, absent, _, short = pressed.sessions
    loop = pressed.loop
    pressed.now = loop.machine.planned_at = 5.0
    assert told(loop) == {"budget": 7}  # all are to be decoded, and none is yet
    computed.in_step = True
    pressed.now = 6.0
    pressed.draft(late, 1)
    device.sources.device.turn.server_drives = False
    reader.outbox.put(Verdict(6, (1,) * 1_000_000))
    while not reader.outbox.full:
        reader.outbox.put(Verdict(6, (1,)))
    absent.detach()
    loop.machine.left_out = frozenset({short.id})
    assert told(loop) == {"step": 1, "device": 1, "reader": 1, "absent": 1, "budget": 1, "kv": 1}
    # His draft was there when the next step was planned, and still it was left out
    loop.machine.planned_at = 7.0
    assert told(loop) == {"device": 1, "reader": 1, "absent": 1, "budget": 2, "kv": 1}


def test_sessions_that_lose_their_kv_are_counted():
    pressed = Pressed(0.0, [[1] * 20, [2] * 20], {"num_blocks": 8, "block_size": 4}, prefix_cache=False)
    pressed.step(Slice(1, 16, False))
    assert pressed.loop.machine.stats.preempted == 0
    assert pressed.step(Slice(0, 20, True)) == {0}  # the older one needs it
    assert pressed.loop.machine.stats.preempted == 1


@dataclass(frozen=True)
class Advising(Fcfs):
    """`fcfs` that asks for drafts of 3 tokens."""

    def plan(self, snapshot, profile: HardwareProfile, now: float) -> BatchPlan:
        plan = super().plan(snapshot, profile, now)
        return replace(plan, slices=tuple(replace(piece, hint=3) for piece in plan.slices))


async def test_hints_are_counted_by_what_they_say():
    async with running(FakeEngine(num_blocks=200), policy=Advising(60.0)) as network:
        await ask(network, PROMPT, OracleDrafter(0.7), SamplingParams(temperature=0, max_tokens=40))
        found = samples(scrape(server_metrics(network.manager)))
        assert found["draft_hints_total", "3"] == found["steps_total",] > 5  # each of them decides


async def test_a_prompt_that_was_there_before_is_counted_as_taken_over():
    async with running(FakeEngine(num_blocks=200)) as network:
        prompt = tuple(range(1, 31))
        for _ in range(2):
            await ask(network, prompt, OracleDrafter(1.0), SamplingParams(temperature=0, max_tokens=4))
        found = samples(scrape(server_metrics(network.manager)))
    assert found["prefix_cache_hits_total",] >= 28 and found["kv_tokens", "cached"] > 0
    states = ("free", "cached", "used", "shared")
    assert sum(found["kv_tokens", state] for state in states) == 200 * 4


async def test_a_gateway_tells_of_its_replicas_and_placements():
    async with cluster("a", "b") as one, linked(one.address) as link:
        moved = await first_reply(link, Open(PROMPT, GREEDY))
        assert isinstance(moved, Moved)
        async with linked(moved.address) as direct:
            await finish(direct, Open(PROMPT, GREEDY, resume_token=moved.resume_token))
        assert isinstance(await first_reply(link, Open(PROMPT, GREEDY, committed=(1,))), Moved)
        text = scrape(gateway_metrics(one.serving.gateway, one))
        text, metrics = text, gateway_metrics(one.serving.gateway, one)
    found = samples(text)
    assert sum(found.get(("placements_total", name), 0) for name in "ab") == 2
    assert found["placements_resumed_total",] == 1 and found["streams_lost_total",] == 0
    assert found["replica_places", "a"] == found["replica_places", "b"] == 64
    assert found["replica_step_seconds", "a"] == 0.01 and found["replica_draining", "b"] == 0
    assert documented("gateways") == {(metric.name, metric.label) for metric in metrics}
    assert all(metric.help.endswith(".") for metric in metrics)
