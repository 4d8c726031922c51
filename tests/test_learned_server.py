"""What a server takes its steps to cost, at first and once it has seen some; what it learns of a real target."""

import random
import time

import pytest
import torch

from hw_profiles.learned import FIRST_FITS, CostModel, LearnedCost
from hw_profiles.step_cost import Roofline
from lab.testbed.emulation.emulated_accelerator import DilatedCost, EmulatedEngine
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.fleet import Server
from opensled.models.store import model_path
from tests.fakes import FakeEngine
from tests.serving import finish, linked, serving
from verify_server.engine.base import Segment
from verify_server.engine.costs import MEASURE_S, measure
from verify_server.engine.torch import torch_engine


def segments(rng, block_size, room=512):
    """A step of up to 16 sessions with drafts, now and then a prompt among them; each has `room` positions."""
    found, drafted = [], rng.randint(0, 4)
    for session in range(rng.randint(1, 16)):
        start, count = rng.randint(1, 300), 1 + rng.randint(0, drafted)
        if not session and rng.random() < 0.1:
            start, count = 0, rng.randint(20, 200)
        first = session * room // block_size
        blocks = tuple(range(first, first + -(-(start + count) // block_size)))
        found.append(Segment((5,) * count, start, blocks, rows=1))
    return found


def sizes(step):
    tokens = sum(len(segment.tokens) for segment in step)
    return tokens, sum(segment.start for segment in step) + tokens, len(step)


@pytest.mark.long
def test_the_steps_of_a_real_target_are_learned():
    """CPU seconds of one thread, which others on this machine disturb little. Held out: the last 150 steps."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        engine = torch_engine.load(str(model_path("tiny")), device="cpu", kv_tokens=16 * 512)
        model, rng, errors = CostModel(), random.Random(1), []
        for number in range(400):
            step = segments(rng, engine.info.block_size)
            began = time.thread_time()
            engine.forward(step)
            seconds = time.thread_time() - began
            if number >= 250:
                errors.append(abs(model.cost.verify_s(*sizes(step)) / seconds - 1))
            model.observe(*sizes(step), seconds)
    finally:
        torch.set_num_threads(threads)
    assert sorted(errors)[len(errors) // 2] < 0.35 and model.error < 0.35
    ten = [model.cost.verify_s(tokens, 2000, 10) for tokens in (10, 50, 200)]
    assert ten[1] > 1.1 * ten[0] and ten[2] > 1.3 * ten[1]  # on a processor each token costs


async def test_a_loop_learns_and_tells_its_policy():
    async with serving(engine=FakeEngine(num_blocks=100)) as (manager, address), linked(address) as link:
        first = manager.loop.machine.profile
        assert first.cost == Roofline()
        await finish(link)
        learned = manager.loop.machine.profile
        assert manager.loop.machine.costs.steps == manager.loop.machine.stats.steps >= FIRST_FITS[0]
        assert isinstance(learned.cost, LearnedCost) and learned.cost is manager.loop.machine.costs.cost
        assert learned.max_step_tokens == first.max_step_tokens
        # a step of the fake target takes some 100 us, and nowhere near the 6 ms of the first guess
        assert 0 < learned.cost.verify_s(1, 20, 1) < 0.004


async def test_a_step_that_failed_teaches_nothing():
    engine = FakeEngine(num_blocks=100, before=lambda segments: 1 / 0)
    async with serving(engine=engine) as (manager, address), linked(address) as link:
        with pytest.raises(Exception, match="the target model failed"):
            await finish(link)
        assert manager.loop.machine.stats.steps == 1 and manager.loop.machine.costs.steps == 0


class Timed(FakeEngine):
    """Takes 20 ms a step, 2 ms a token up to eight, and 10 ms for each beyond them, on a clock of its own."""

    def __init__(self, num_blocks=100, broken_from=None):
        super().__init__(num_blocks=num_blocks)
        self.now, self.steps, self.held, self.broken_from = 0.0, [], set(), broken_from

    def forward(self, segments):
        blocks = [block for segment in segments for block in segment.blocks]
        assert len(blocks) == len(set(blocks)) and not self.held & set(blocks)
        self.held.update(blocks)
        tokens = sum(len(segment.tokens) for segment in segments)
        self.steps.append(tokens)
        if len(self.steps) == self.broken_from:
            raise RuntimeError("out of order")
        self.now += 0.02 + 0.002 * min(tokens, 8) + 0.01 * max(0, tokens - 8)

    def forget(self, blocks):
        self.held -= set(blocks)


def test_a_server_measures_its_steps_before_it_serves():
    engine = Timed()
    cost = measure(engine, Roofline(), lambda: engine.now)
    for tokens, seconds in ((1, 0.022), (8, 0.036), (16, 0.116), (32, 0.276)):
        assert cost.verify_s(tokens, tokens, min(8, tokens)) == pytest.approx(seconds, rel=0.15)
    assert not engine.held and max(engine.steps) == 32


def test_a_slow_target_or_a_small_memory_measures_less():
    slow = Timed()
    clock = iter(range(100))  # each look at it is a second later
    measure(slow, Roofline(), lambda: next(clock))
    assert len(slow.steps) <= 1 + MEASURE_S
    small = Timed(num_blocks=1)
    measure(small, Roofline(), lambda: small.now)
    assert small.steps and not small.held


def test_a_target_that_fails_while_it_is_measured_is_served_by_a_guess(caplog):
    engine, seed = Timed(broken_from=4), Roofline()
    assert measure(engine, seed, lambda: engine.now) is seed
    assert not engine.held and "could not be measured" in caplog.text


def test_an_emulated_accelerator_says_what_it_charges():
    """Sessions hold positions the server does not know of, and seconds are stretched."""
    law = StepLaw.of(Server(accelerator="agx-orin", context=1000))
    engine, cost = EmulatedEngine(FakeEngine(), law, 3.0), DilatedCost(law.cost, 3.0)
    pieces = [StepPiece(tokens=3, end=40), StepPiece(tokens=1, end=10)]
    assert cost.verify_s(4, 50, 2) == pytest.approx(engine._dilation * engine._law.step_s(pieces))
