"""What a device takes from a server that drops its sequence again and again, or does not stop."""

import pytest

from edge_client.link.remote import MAX_FRUITLESS, ReopeningPace, RetryPolicy
from opensled.core.errors import ProtocolError, Unreachable
from opensled.core.messages import Moved, Verdict
from tests.test_remote_moves import World, opened, told


def test_once_costs_no_time():
    world = World(home=[[opened(), Verdict(3, (7,))], [opened(), Verdict(4, (8,))]])
    session = world.run(told(world, 2))
    assert session.reopened == 1 and world.loop.now == 0


@pytest.mark.parametrize(
    "script",
    [[opened()], [opened(), Verdict(9, (9,))], [opened(), Moved()], [opened(), opened()]],
    ids=["lost", "gap", "moved", "opened twice"],
)
def test_a_server_that_drops_every_stream_is_given_up(script):
    world = World(home=[script] * 1000)
    with pytest.raises(Unreachable, match=f"accepted this answer {MAX_FRUITLESS} times"):
        world.run(told(world, 1))
    assert len(world.started) == MAX_FRUITLESS + 2 and 30 < world.loop.now < 120
    assert world.open_streams == 0


def test_a_token_each_time_buys_no_more_than_a_stream_in_two_seconds():
    world = World(home=[[opened(), Verdict(3 + at, (7,))] for at in range(40)])
    world.run(told(world, 40))
    assert len(world.started) == 40 and world.loop.now > 55


def test_times_are_forgiven():
    policy = RetryPolicy()
    pace = ReopeningPace(policy.first_retry, policy.slowest_retry)
    pauses = [pace.pause(now, length) for length, now in enumerate((10, 10, 10, 10, 15, 100), 1)]
    assert pauses == [0, 0.05, 0.1, 0.2, pytest.approx(0.1 / 2**0.5), 0]


def test_a_server_that_does_not_stop_is_cut():
    """The 50 tokens of the request arrive; of what comes after them none does."""
    world = World(home=[[opened(), Verdict(3, (7,) * 50), Verdict(53, (8,))]])
    with pytest.raises(ProtocolError, match=r"more than the 50 tokens .*--max-tokens"):
        world.run(told(world, 2))
    world = World(home=[[opened(), Verdict(3, (7,) * 50)]])
    assert world.run(told(world, 1)).truth.generated == (7,) * 50
    world = World(home=[[opened(), Verdict(3, (7,) * 51)]])
    with pytest.raises(ProtocolError):
        world.run(told(world, 1))
