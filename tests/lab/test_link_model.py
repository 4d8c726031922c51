"""The link model: its percentiles, order, rate and losses, from seeded draws."""

import statistics

import pytest

from hw_profiles import catalog
from lab.testbed.link_model import CORRELATION, MIN_RTO_S, TAILS, LinkModel, Way, Wire, way
from opensled.core.errors import UsageError
from tests.link_profiles import profile, without_loss

LINKS = catalog.names("links")
DRAWS = 50_000


def round_trips(link, draws: int = DRAWS, seed: int = 1) -> list[float]:
    """One message at a time there and back, milliseconds."""
    up, down = LinkModel(link, seed, True), LinkModel(link, seed, False)
    now, taken = 0.0, []
    for _ in range(draws):
        back = down.deliver_at(up.deliver_at(now, 1), 1)
        taken.append(1000 * (back - now))
        now = back
    return taken


@pytest.mark.parametrize("name", LINKS)
def test_round_trips_have_the_median_and_the_99th_percentile_of_the_profile(name):
    link = without_loss(name)
    cuts = statistics.quantiles(round_trips(link), n=100)
    assert cuts[49] == pytest.approx(link.rtt_p50_ms.typical, rel=0.02)
    assert cuts[98] == pytest.approx(link.rtt_p99_ms.typical, rel=0.05)


@pytest.mark.parametrize("tail", TAILS)
def test_the_constants_of_every_tail_are_those_of_the_sum_of_two_draws(tail):
    model = LinkModel(profile(), 7, True)
    model._way = Way(fixed=0.0, scale=1.0, exponent=tail.exponent)
    draws = [model._delay() for _ in range(4 * DRAWS)]
    # Far apart in the chain, so that the two are independent.
    sums = [one + other for one, other in zip(draws[: 2 * DRAWS], draws[2 * DRAWS :])]
    cuts = statistics.quantiles(sums, n=100)
    assert cuts[49] == pytest.approx(tail.median, rel=0.02)
    assert cuts[98] == pytest.approx(tail.p99, rel=0.05)


def test_successive_delays_are_correlated_as_stated():
    model = LinkModel(profile((10, 30)), 3, True)
    scores = []
    for _ in range(DRAWS):
        model._delay()
        scores.append(model._score)
    assert statistics.correlation(scores[:-1], scores[1:]) == pytest.approx(CORRELATION, abs=0.02)


@pytest.mark.parametrize("name", LINKS)
def test_nothing_overtakes_and_nothing_arrives_before_light_would(name):
    link, now = catalog.link(name), 0.0
    model, last = LinkModel(link, 5, False), 0.0
    least = way(link.rtt_s, link.rtt_p99_ms.typical / 1000).fixed
    for number in range(5000):
        now += 0.0001 * (number % 7)
        arrival = model.deliver_at(now, 60 + number % 3000)
        assert arrival >= last and arrival >= now + least > now
        last = arrival


def test_bytes_take_the_time_of_the_rate_and_wait_for_those_before_them():
    model = LinkModel(profile(up=8), 0, True)  # 1 MB/s, no delay
    assert model.deliver_at(10.0, 1000) == pytest.approx(10.001)
    assert model.deliver_at(10.0, 2000) == pytest.approx(10.003)
    assert model.deliver_at(20.0, 1000) == pytest.approx(20.001)


def test_connections_share_a_wire_and_its_directions_do_not():
    link = profile(up=8, down=16)
    up = Wire(link, True)
    one, other = LinkModel(link, 0, True, up), LinkModel(link, 1, True, up)
    assert one.deliver_at(0.0, 1000) == pytest.approx(0.001)
    assert other.deliver_at(0.0, 1000) == pytest.approx(0.002)
    assert LinkModel(link, 0, False).deliver_at(0.0, 1000) == pytest.approx(0.0005)


@pytest.mark.parametrize("burst", [1.0, 4.0])
def test_losses_have_the_share_and_the_mean_burst_of_the_profile(burst):
    model = LinkModel(profile(loss=0.03, burst=burst), 11, True)
    lost = [model._loses_one() for _ in range(20 * DRAWS)]
    bursts = sum(now and not before for before, now in zip([False, *lost], lost))
    assert sum(lost) / len(lost) == pytest.approx(0.03, rel=0.05)
    assert sum(lost) / bursts == pytest.approx(burst, rel=0.05 if burst > 1 else 0.06)


def test_a_loss_is_a_stall_of_one_timeout_for_each_time_that_it_is_lost():
    model = LinkModel(profile(loss=0.2, burst=2.0), 2, True)
    delays, now = [], 0.0
    for _ in range(DRAWS // 10):
        now += 10.0
        delays.append(model.deliver_at(now, 100) - now)
    stalls = {round(delay / MIN_RTO_S, 3) for delay in delays}
    assert {0.0, 1.0, 2.0, 3.0} <= stalls and all(stall == int(stall) for stall in stalls)
    # Of the messages, as many are lost at least once as a chain in its long run begins to lose.
    assert sum(delay < 0.1 for delay in delays) / len(delays) == pytest.approx(1 - 0.2 / 0.8 / 2, abs=0.02)


def test_a_slow_link_waits_a_round_trip_for_what_was_lost():
    model = LinkModel(profile((900, 900), loss=0.3), 2, True)
    delays = sorted(model.deliver_at(100.0 * n, 100) - 100.0 * n for n in range(200))
    assert delays[0] == pytest.approx(0.45, abs=1e-6)
    assert min(delay for delay in delays if delay > 0.5) == pytest.approx(1.35, abs=1e-6)


def test_what_was_sent_after_a_loss_waits_for_it():
    model = LinkModel(profile(loss=0.3), 4, True)
    arrivals = [model.deliver_at(0.001 * n, 100) for n in range(200)]
    stalled = next(n for n, at in enumerate(arrivals) if at - 0.001 * n > 0.19)
    assert arrivals[stalled + 1] >= arrivals[stalled]


def test_a_seed_says_everything():
    link = catalog.link("lte-bad")
    runs = [[LinkModel(link, seed, True).deliver_at(float(n), 99) for n in range(100)] for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (profile((10, 5)), "p99"),
        (profile((1, 90)), "p99"),
        (profile(up=0), "rate"),
        (profile(loss=1.0), "loss"),
        (profile(burst=0.5), "burst"),
    ],
)
def test_a_link_that_cannot_be_is_refused_by_name(broken, word):
    with pytest.raises(UsageError, match=word):
        LinkModel(broken, 0, True)
