"""Metrics: server and device count what happens, and alike."""

import asyncio
import re
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.device import device_metrics, telemetry
from edge_client.device.device_metrics import board_metrics
from edge_client.link.remote import RemoteSession
from hw_profiles.sysfs import BoardState, Sensors
from opensled.core.answer import Task
from opensled.core.errors import OpenSledError, Overloaded, Unreachable
from opensled.core.messages import Draft, DraftBlock, DraftToken, Open, SamplingParams
from opensled.metrics.registry import DraftCounts, Histogram, Metric
from tests.devices import device_on, read
from tests.fakes import POISON, FakeEngine, OracleDrafter
from tests.golden_boards import plant
from tests.outages import LONG, device_that_loses
from tests.scraping import SPEC, samples, scrape
from tests.serving import GREEDY, PROMPT, finish, first_reply, linked, serving
from tests.system import ask, running, until
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.front.server_metrics import metrics as server_metrics


def test_histograms_count_bounds_as_prometheus_does():
    histogram = Histogram((1, 2.5))
    for value in (0, 1, 1.1, 2.5, 2.6, 99):
        histogram.add(value)
    assert histogram.counts == [2, 2, 2] and histogram.sum == pytest.approx(106.2)
    text = scrape([Metric("example_seconds", "An example.", lambda: histogram)])
    buckets = {le: float(n) for le, n in re.findall(r'_bucket\{le="(.*?)"\} (\S+)', text)}
    assert buckets == {"1.0": 2, "2.5": 4, "+Inf": 6}
    assert samples(text)["example_seconds_count",] == 6


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16)).map(lambda x: (x[0], min(x)))))
def test_draft_counts_agree_with_themselves(blocks):
    counts = DraftCounts()
    for tokens, accepted in blocks:
        counts.add(tokens, accepted)
    per_position = counts.accepted_per_position
    assert sum(per_position) == counts.accepted <= counts.tokens and counts.drafts == len(blocks)
    assert per_position == sorted(per_position, reverse=True)
    assert len(per_position) == max((accepted for _, accepted in blocks), default=0)


async def test_server_and_devices_count_what_the_answers_say():
    async with serving() as (manager, address), device_on(address, parallel=2) as device:
        tasks = [Task((id, 5), SamplingParams(temperature=0, max_tokens=20 + id)) for id in range(1, 5)]
        answers = [
            *await asyncio.gather(read(device, tasks[0]), read(device, tasks[1])),
            *await asyncio.gather(*(read(device, task) for task in tasks[2:])),
            await read(device, Task(PROMPT, GREEDY, stop=())),
        ]
        stats = [chunks[-1].stats for chunks in answers]
        server, edge = (
            samples(scrape(server_metrics(manager))),
            samples(scrape(device_metrics.metrics(device))),
        )
        expected = [sum(getattr(s, name) for s in stats) for name in ("rounds", "drafted", "accepted")]
        assert expected[2] > 20
        for side in (server, edge):
            assert [side[f"spec_decode_{name}",] for name in SPEC] == expected
            assert side["tokens_committed_total",] == sum(s.completion_tokens for s in stats)
            assert side["tokens_unasked_total",] == sum(s.server_decoded for s in stats)
            per_position = "spec_decode_num_accepted_tokens_per_pos_total"
            assert sum(n for (name, *_), n in side.items() if name == per_position) == expected[2]
        assert edge["request_success_total", "length"] == server["sessions_opened_total", "new"] == 5
        assert edge["time_to_first_token_seconds_count",] == 5
        assert edge["request_time_per_output_token_seconds_count",] == 5
        assert 0 < edge["time_to_first_token_seconds_sum",] <= sum(s.seconds for s in stats)
        assert (edge["drafters",], edge["drafters_busy",]) == (2, 0)
        assert server["draft_tokens_count",] == expected[0]
        assert server["draft_tokens_sum",] == expected[1]


async def test_the_loop_counts_its_steps():
    engine = FakeEngine(num_blocks=100)
    async with serving(engine=engine) as (manager, address), linked(address) as link:
        long = tuple(range(1, 48)) * 3  # more than one step takes
        await asyncio.gather(finish(link), finish(link, Open(long, GREEDY)))
        text = scrape(server_metrics(manager))
        found = samples(text)
        assert found["steps_total",] == found["step_seconds_count",] == len(engine.batches)
        assert found["step_sessions_count",] == len(engine.batches)
        assert found["step_sessions_sum",] == sum(engine.batches)
        assert found["positions_computed_total",] == engine.computed
        assert found["tokens_committed_total",] == found["tokens_unasked_total",] == 40
        assert found["kv_tokens", "free"] + found["kv_tokens", "cached"] == 100 * engine.block_size
        assert found["sessions", "live"] == 0
        assert found["step_tokens_sum",] == engine.computed
        assert found["step_tokens_count",] == len(engine.batches)
        assert found["step_prediction_error_ratio",] == manager.loop.machine.costs.error > 0
        assert found["session_places",] == 3


class Moody(OracleDrafter):
    """Proposes nothing now and then: an empty block hands the drive to the server and is no draft."""

    def propose(self):
        return iter(()) if self._random.random() < 0.3 else super().propose()


@pytest.mark.parametrize("draft_wait", [0.0, 0.0005, 60.0], ids=["never waits", "hurries", "waits"])
async def test_both_ends_count_alike_when_drafts_are_late(draft_wait):
    """Drafts that met tokens decoded unasked: stale ones, and ones of which a rest was computed."""
    async with running(FakeEngine(num_blocks=200), draft_wait=draft_wait) as network:
        params = SamplingParams(temperature=0, max_tokens=120)
        drafters = [Moody(0.7, seed) for seed in range(6)]
        answers = await asyncio.gather(
            *(ask(network, (seed + 1, 2), drafter, params) for seed, drafter in enumerate(drafters))
        )
        rounds = [commit for answer in answers for commit in answer.rounds]
        stats = network.manager.loop.machine.stats
        assert stats.drafts.drafts == len(rounds)
        assert stats.drafts.tokens == sum(commit.drafted for commit in rounds)
        assert stats.drafts.accepted == sum(commit.accepted for commit in rounds)
        assert stats.tokens == 6 * 120
        assert stats.unasked == 6 * 120 - sum(len(commit.tokens) for commit in rounds)
        assert stats.stale <= stats.drafts.drafts
        stale = stats.stale
    assert stale > 0 or draft_wait


async def test_a_draft_of_which_only_a_rest_was_open_counts_that_rest():
    async with running(FakeEngine()) as network:
        session = RemoteSession(network.connect, Open(PROMPT, SamplingParams(temperature=0, max_tokens=9)))
        await session.open()
        drafter = OracleDrafter(1.0)
        drafter.begin(PROMPT, None)
        ids = [token.id for token, _ in zip(drafter.propose(), range(5))]
        while len(session.truth) < len(PROMPT) + 1:  # decoded unasked
            session.truth.extend(await session.next_verdict())
        known = len(session.truth) - len(PROMPT)
        block = DraftBlock(len(PROMPT), tuple(DraftToken(id) for id in ids[: known + 2]))
        await session.submit(Draft(1, block))
        stats = network.manager.loop.machine.stats
        await until(lambda: stats.drafts.drafts == 1)
        undecided = len(ids[: known + 2]) - stats.unasked
        assert stats.drafts.tokens == known + 2
        assert stats.drafts.accepted == max(0, undecided) and stats.stale in (0, 1)
        await session.close()


async def test_refusals_and_failures_by_code():
    limits = SessionLimits(max_sessions=2, max_draft=8, linger=0.05)
    async with serving(limits=limits) as (manager, address), linked(address) as link:
        await first_reply(link, Open((), GREEDY))
        await first_reply(link, Open((1, POISON), GREEDY), Draft(1, DraftBlock(2)))
        long = SamplingParams(temperature=0, max_tokens=190)  # not over before the draft is there
        await first_reply(link, Open(PROMPT, long), Draft(1, DraftBlock(199, (DraftToken(1),))))
        await until(lambda: not manager.loop.machine.sessions)
        found = samples(scrape(server_metrics(manager)))
        assert found["requests_refused_total", "invalid_request"] == 1
        assert found["refusal_seconds_count",] == 1 and 0 < found["refusal_seconds_sum",] < 60
        assert found["failures_total", "non_finite_logits"] == 1
        assert found["failures_total", "future_base"] == 1
        assert found["sessions_opened_total", "new"] == 2


async def test_a_stranger_is_counted_as_refused():
    async with serving(Tenants((("secret", "acme"),))) as (manager, address), linked(address) as link:
        with pytest.raises(OpenSledError):
            await link.describe()
        assert samples(scrape(server_metrics(manager)))["requests_refused_total", "unauthorized"] == 1


async def test_readers_who_leave_and_come_back():
    limits = SessionLimits(max_sessions=2, max_draft=8, linger=30)
    async with serving(limits=limits) as (manager, address), linked(address) as link:
        params = SamplingParams(temperature=0, max_tokens=150)
        session = RemoteSession(link.connect, Open(PROMPT, params))
        await session.open()
        session.truth.extend(await session.next_verdict())
        assert samples(scrape(server_metrics(manager)))["sessions", "live"] == 1
        await session._stream.close()
        session._stream = None  # the link broke
        while not session.truth.finish_reason:
            session.truth.extend(await session.next_verdict())
        await session.close()
        assert session.reopened == 1
        found = samples(scrape(server_metrics(manager)))
        assert found["sessions_opened_total", "new"] == found["sessions_opened_total", "resumed"] == 1


async def test_a_device_counts_ends_of_every_kind():
    async with serving() as (manager, address), device_on(address) as device:
        await read(device)
        async with aclosing(device.answer(Task(PROMPT, SamplingParams(max_tokens=150)))) as chunks:
            await anext(chunks)  # and leaves
            assert device.drafters_busy == 1
        async with aclosing(device.answer(Task(PROMPT, GREEDY))) as chunks:
            while not (await anext(chunks)).finish_reason:
                pass  # and leaves with the last chunk
        manager.draining = True
        with pytest.raises(Overloaded):
            await read(device)
        found = samples(scrape(device_metrics.metrics(device)))
        assert (
            found["request_success_total", "length"] == 2 and found["request_success_total", "cancelled"] == 1
        )
        assert found["errors_total", "overloaded"] == 1
        assert found["drafters_busy",] == 0


def test_a_lost_server_and_an_internal_error_are_counted():
    counts = telemetry.Telemetry()
    for error in (Unreachable("gone"), ZeroDivisionError(), asyncio.CancelledError()):
        with pytest.raises(type(error)), counts.answer():
            raise error
    assert dict(counts.errors) == {"unreachable": 1, "internal": 1}
    assert counts.answers.total() == counts.answers["cancelled"] == 1


@pytest.mark.parametrize("to_the_end", [True, False])
async def test_streams_that_were_found_again_are_counted_once(to_the_end):
    async with device_that_loses() as (device, network):
        async with aclosing(device.answer(LONG)) as chunks:
            await anext(chunks)
            await network.lose()
            network.find()
            async for chunk in chunks:
                if chunk.token_ids and not to_the_end:
                    break
        assert device.telemetry.reopened == 1


# -- a board's figures --------------------------------------------------------------------------------------------


def told(look, pmic=lambda: None):
    found = samples(scrape(board_metrics(look, pmic)))
    return {
        key if isinstance(key, str) else key[0]: value for key, value in found.items() if "board" in str(key)
    }


def test_a_hot_pi_4(tmp_path):
    found = told(Sensors(plant("pi-4", tmp_path)).look)
    assert found == {
        "board_temperature_celsius": 82.29,
        "board_throttled": 1,
        "board_throttled_since_boot": 1,
        "board_cpu_hertz": 1.5e9,
        "board_cpu_max_hertz": 1.8e9,
    }


def test_power_comes_from_rails_and_else_from_the_pmic(tmp_path):
    nano, pi = (Sensors(plant(name, tmp_path / name)).look for name in ("orin-nano", "pi-5"))
    assert told(nano, lambda: 99.0)["board_power_watts"] == pytest.approx(14.596, abs=0.001)
    assert told(pi, lambda: 5.33)["board_power_watts"] == 5.33
    assert "board_power_watts" not in told(pi)


def test_a_battery():
    found = told(lambda: BoardState(battery_percent=40.0, discharging=True))
    assert (found["board_battery_ratio"], found["board_discharging"]) == (pytest.approx(0.4), 1)


def test_a_machine_that_tells_nothing_has_no_samples():
    assert told(BoardState) == {}
