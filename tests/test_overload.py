"""A server that more want than it can serve: who comes in, who is sent away for how long, and how fast he hears it."""

import heapq
import random
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from opensled.core.errors import Overloaded
from opensled.core.messages import Open, SamplingParams
from tests.fakes import CountingText, FakeEngine
from tests.serving import PROMPT, first_reply, linked, serving
from tests.sessions import PROFILE
from tests.system import running
from tests.views import viewed
from verify_server.access.security import Tenants
from verify_server.admission.admission_controller import AdmissionController
from verify_server.admission.admission_memory import LONGEST, SHORTEST, USED_S, PlaceTime, RetryQueue
from verify_server.admission.admission_rules import AdmissionRequest
from verify_server.admission.session_manager import SessionLimits
from verify_server.kv.block_memory import BlockMemory
from verify_server.kv.blocks import BlockPool
from verify_server.round.budget import Quotas

LONG = SamplingParams(temperature=0, max_tokens=150)


class Inside:
    """A session as the admission controller sees it."""

    def __init__(self, tenant, pace=0.0, background=False, blocks=()):
        self.tenant, self.background, self.has_reader = tenant, background, True
        self.timing = SimpleNamespace(pace=pace)
        self.sequence = SimpleNamespace(memory=SimpleNamespace(blocks=blocks))

    def view(self, now):
        return viewed(0, server_drives=True, pace=self.timing.pace, background=self.background)


class Hall:
    """A room over sessions that are only counted, at a time that only the test moves."""

    def __init__(self, places, tenants=Tenants(), blocks=100):
        self.now, self.sessions = 0.0, {}
        self.pool, self.profile = BlockPool(blocks, 4), PROFILE
        self.memory = BlockMemory(self.pool)
        self.machine = self.target = self  # of the loop that it stands for
        self.room = AdmissionController(self, places, tenants, Quotas(tenants, self.clock))
        self.numbers = iter(range(1_000_000))

    def clock(self):
        return self.now

    def ask(self, tenant, **fields):
        """The number of the session let in; raises Overloaded."""
        positions = fields.pop("positions", 0)
        with self.room.arriving(AdmissionRequest(tenant, positions, **fields)):
            number = next(self.numbers)
            self.sessions[number] = Inside(tenant, **fields)
            self.room.count_entry()
        return number

    def refused(self, tenant, **fields):
        with pytest.raises(Overloaded) as error:
            self.ask(tenant, **fields)
        return error.value

    def held(self):
        return "".join(sorted(session.tenant for session in self.sessions.values()))


# -- paces ------------------------------------------------------------------------------------------------------


def test_the_server_is_full_before_a_promise_breaks():
    """45 sessions keep 20 tokens/s: see test_admission.py."""
    hall = Hall(256)
    numbers = [hall.ask("a", pace=20.0) for _ in range(45)]
    assert "pace" in str(hall.refused("a", pace=20.0))
    assert "pace" in str(hall.refused("a"))  # he asks for none, and would cost theirs
    hall.sessions.pop(numbers[0])
    hall.ask("a")


def test_who_asks_for_a_pace_that_is_not_to_be_had_stays_outside():
    hall = Hall(256)
    for _ in range(60):
        hall.ask("a")
    assert "pace" in str(hall.refused("b", pace=20.0))
    hall.ask("b")


def test_background_sessions_come_in_last_and_cost_others_nothing():
    hall = Hall(16)
    while True:
        try:
            hall.ask("a", background=True)
        except Overloaded:
            break
    assert len(hall.sessions) == 14  # two places in sixteen are for others
    assert [hall.ask("b", pace=50.0) for _ in range(2)]  # theirs is not the pace that counts
    assert "server" in str(hall.refused("b", pace=50.0))
    hall.sessions.pop(0)
    hall.refused("a", background=True)
    hall.ask("b")


def test_background_sessions_that_wait_keep_no_place():
    hall = Hall(3)
    for tenant in ("a", "a", "a"):
        hall.ask(tenant)
    hall.refused("b", background=True)
    hall.sessions.pop(0)
    hall.ask("a")
    hall.refused("b")
    hall.sessions.pop(1)
    hall.refused("a")  # b's other one waits, who is nobody's background


def test_a_prompt_that_would_cost_those_inside_their_kv_waits():
    """And with it their pace; where none is promised, recomputing serves everybody."""
    hall = Hall(256, blocks=100)
    hall.pool.take(90)
    hall.sessions[0] = Inside("a", pace=1.0, blocks=range(90))
    hall.refused("b", positions=41)
    hall.ask("b", positions=40)
    hall.sessions[0].timing.pace = 0.0
    hall.ask("b", positions=4100)


# -- turns ------------------------------------------------------------------------------------------------------


def full():
    """Four places, all of them with one tenant."""
    hall = Hall(4)
    for _ in range(4):
        hall.ask("greedy")
    return hall


def test_a_freed_place_goes_to_who_has_less():
    hall = full()
    told = hall.refused("modest").retry_after
    hall.sessions.pop(0)
    hall.now += told / 2
    hall.refused("greedy")
    hall.now += told / 2
    hall.ask("modest")
    assert hall.held() == "greedygreedygreedymodest"


def test_for_who_has_come_back_no_further_place_is_kept():
    hall = full()
    hall.refused("modest")
    for number in (0, 1):
        hall.sessions.pop(number)
    hall.ask("modest")
    hall.ask("greedy")


def test_who_is_refused_again_and_again_keeps_his_turn_after_he_came_in():
    """Of ten who were sent away one came back; the others are still expected, so the next place is theirs, too."""
    hall = full()
    for _ in range(10):
        hall.refused("modest")
    hall.sessions.pop(0)
    hall.ask("modest")
    hall.sessions.pop(1)
    hall.refused("greedy")
    hall.ask("modest")


def test_a_place_is_kept_until_the_whole_second_that_http_tells():
    queue = RetryQueue()
    for seconds in (SHORTEST, 1.2):
        queue.add(f"told {seconds}", seconds, now=0.0)
    assert queue.counts(1.2).total() == 2
    assert list(queue.counts(2.2)) == ["told 1.2"]
    assert not queue.counts(2.8)


def test_places_held_of_late_fade_and_are_forgotten():
    time = PlaceTime()
    for tenth in range(101):
        time.note({"a": 2, "b": 1}, tenth / 10)
    assert time.used["a"] == pytest.approx(2 * time.used["b"]) and 16 < time.used["a"] < 20
    time.note({}, 10 + USED_S)
    assert 8 < time.used["a"] < 10
    time.note({}, 10 + 20 * USED_S)
    time.note({}, 10 + 20 * USED_S)
    assert not time.used


def test_a_place_is_kept_for_a_moment_only():
    """Who was sent away and does not come back on time is not waited for."""
    hall = full()
    told = hall.refused("modest").retry_after
    hall.sessions.pop(0)
    hall.refused("greedy")
    hall.now += 2 * told + 1
    hall.ask("greedy")


def test_the_time_to_come_back_follows_from_the_rate_at_which_sessions_end():
    hall = Hall(10)
    for _ in range(10):
        hall.ask("a")
    for _ in range(40):  # two end each second
        hall.now += 0.5
        hall.sessions.pop(next(iter(hall.sessions)))
        hall.ask("a")
    first = hall.refused("b").retry_after
    assert first == pytest.approx(0.5, rel=0.1)
    assert hall.refused("b").retry_after == pytest.approx(2 * first)  # another one of his waits before him
    assert all(SHORTEST <= hall.refused("b").retry_after <= LONGEST for _ in range(100))


@dataclass(frozen=True)
class Crowd:
    """What happened to an overloaded server."""

    place_seconds: Counter[str]
    idle: float  # share of all places and time


def overload(places, rates, seconds, patient, seed=0):
    """Tenants ask at `rates` for sessions that last a second on average; those sent away ask again if `patient`."""
    hall, draw = Hall(places), random.Random(seed)
    used: Counter[str] = Counter()
    events = [(draw.expovariate(rate), tenant, None) for tenant, rate in rates.items()]
    heapq.heapify(events)
    while (event := heapq.heappop(events))[0] < seconds:
        hall.now, tenant, ends = event
        if ends is not None:
            hall.sessions.pop(ends)
            continue
        if not tenant.endswith(" again"):
            heapq.heappush(events, (hall.now + draw.expovariate(rates[tenant]), tenant, None))
        name = tenant.removesuffix(" again")
        try:
            number = hall.ask(name)
        except Overloaded as error:
            if patient:
                heapq.heappush(events, (hall.now + error.retry_after, f"{name} again", None))
            continue
        lasts = min(draw.expovariate(1.0), seconds - hall.now)
        used[name] += lasts
        heapq.heappush(events, (hall.now + lasts, name, number))
    return Crowd(used, 1 - used.total() / (places * seconds))


def jain(values):
    values = list(values)
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


@pytest.mark.parametrize("patient", [False, True], ids=["gone for good", "come back"])
@pytest.mark.parametrize("places", [3, 4, 5, 6, 8, 12, 16])
def test_equal_tenants_get_equally_much_however_often_one_asks(places, patient):
    asks = 0.5 * places if patient else 2.5 * places  # who comes back asks again and again
    rates = {"a": 10 * asks, "b": asks, "c": asks, "d": asks}
    crowd = overload(places, rates, 40.0, patient)
    assert jain(crowd.place_seconds.values()) > 0.95, crowd
    assert crowd.idle < 0.5 / places + 0.03, crowd


def test_who_asks_for_little_gets_all_of_it():
    crowd = overload(16, {"a": 160.0, "b": 2.0}, 40.0, patient=True)
    assert crowd.place_seconds["b"] / 40 == pytest.approx(2.0, rel=0.3)
    assert crowd.idle < 0.1


# -- the whole server -------------------------------------------------------------------------------------------


@pytest.mark.timed
async def test_who_is_sent_away_costs_no_tokenizing_and_hears_it_at_once():
    limits = SessionLimits(max_sessions=1, max_draft=8)
    async with serving(limits=limits) as (manager, address):
        manager.inputs.text = text = CountingText()
        manager.loop.wake = lambda: None  # the one inside stays there
        manager.loop.machine.sessions[0] = Inside("local")
        async with linked(address) as link:
            seconds = []
            for _ in range(30):
                started = time.perf_counter()
                error = (await first_reply(link, Open("words", LONG))).error()
                seconds.append(time.perf_counter() - started)
                assert isinstance(error, Overloaded) and 0 < error.retry_after <= LONGEST
        manager.loop.machine.sessions.clear()
        assert text.encoded == 0
        assert min(seconds) <= 0.05  # thirty times what it takes here: it waits for nothing


async def test_a_server_that_drains_tokenizes_nothing():
    async with running(FakeEngine()) as network:
        network.manager.inputs.text = text = CountingText()
        network.manager.draining = True
        with pytest.raises(Overloaded, match="shutting down"):
            await network.manager.open(Open("words", LONG), "local")
        assert text.encoded == 0


async def test_the_server_keeps_a_pace_for_those_who_ask_for_none():
    limits = SessionLimits(max_sessions=256, max_draft=8, min_pace=60.0)
    async with running(FakeEngine(num_blocks=2000), limits=limits) as network:
        manager = network.manager
        manager.loop.wake = lambda: None
        manager.loop.machine.profile = PROFILE
        sessions = []
        with pytest.raises(Overloaded, match="pace"):
            while len(sessions) < 100:
                session, _ = await manager.open(Open(PROMPT, LONG), "local")
                manager.loop.attach(session, len(PROMPT))
                sessions.append(session)
        assert len(sessions) == 18 and {session.timing.pace for session in sessions} == {60.0}
