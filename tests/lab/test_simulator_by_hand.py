"""The simulator against the law of a step, a device's own time and the recorded drafts, all computed by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edge_client.lengths.base import pull_tokens
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from hw_profiles import catalog
from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Load
from lab.testbed.load.records import RequestRecord, RunResult
from lab.testbed.simulator import simulate
from lab.testbed.traces import ItemTrace, TraceSet
from opensled.core.messages import DraftToken
from opensled.core.protocol import common_prefix
from tests.lab.made_traces import made

HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512)
BESIDE = Group(1)  # no link, and a draft model that takes no time
SHORT = Load(warmup=1.0, duration=6.0)
TRACES = made()


def one_item(acceptance: float = 1.0, tokens: int = 26) -> TraceSet:
    """A single text of just `tokens` tokens."""
    for seed in range(1000):
        traces = made(1, acceptance, seed, tokens)
        if len(traces.items[0].target_ids) == tokens:
            return traces
    raise AssertionError("no such text")


def finished(result: RunResult) -> list[RequestRecord]:
    return [record for record in result.requests if record.finish_reason]


def steps_by_hand(item: ItemTrace, sizes: list[int]) -> list[float]:
    """Seconds of each step of one session that commits `sizes` tokens, all of them computed but the last of each."""
    seconds, length, uncomputed = [], len(item.prompt_ids), len(item.prompt_ids)
    for size in sizes:
        tokens = uncomputed + size - 1
        seconds.append(HUB.cost.verify_s(tokens, HUB.context + length + size - 1))
        length, uncomputed = length + size, 1
    return seconds


def test_the_pace_of_a_perfect_drafter_beside_the_target_is_that_of_the_law() -> None:
    traces = one_item(acceptance=1.0, tokens=26)
    first = finished(simulate(Fleet(HUB, (BESIDE,)), traces, SHORT))[0]
    seconds = steps_by_hand(traces.items[0], [5, 5, 5, 5, 5, 1])
    assert [arrival.tokens for arrival in first.arrivals] == [5, 5, 5, 5, 5, 1]
    assert first.arrivals[0].time - first.sent == pytest.approx(seconds[0])
    assert first.arrivals[-1].time - first.arrivals[0].time == pytest.approx(sum(seconds[1:]))


def test_centralized_decoding_takes_one_step_for_each_token() -> None:
    traces = one_item(tokens=26)
    first = finished(simulate(Fleet(HUB, (replace(BESIDE, drafter="none"),)), traces, SHORT))[0]
    seconds = steps_by_hand(traces.items[0], [1] * 26)
    times = [first.sent, *(arrival.time for arrival in first.arrivals)]
    assert [after - before for before, after in pairwise(times)] == pytest.approx(seconds)
    assert not first.rounds and not first.wasted


def test_a_device_takes_its_own_time_for_a_block() -> None:
    """For its first one the reading of the prompt, too; the server has written more by then, so that it ends there."""
    traces = one_item(tokens=60)
    patient = replace(HUB, draft_wait=100.0)
    result = simulate(Fleet(patient, (replace(BESIDE, device="pi-5"),)), traces, replace(SHORT, duration=60))
    first, speed = finished(result)[0], catalog.device("pi-5").draft("0.5b")
    prompt_s = max(speed.draft_s(1), speed.prefill_s(len(traces.items[0].prompt_ids)))
    assert first.rounds[0].sent - first.sent == pytest.approx(prompt_s)
    assert first.rounds[0].drafted == 1
    later = first.rounds[1:-1]
    assert [b.sent - a.answered for a, b in pairwise(later)] == pytest.approx(
        [speed.draft_s(4)] * (len(later) - 1)
    )


def test_the_server_decodes_for_a_device_that_is_silent_for_longer_than_it_waits() -> None:
    """After the first draft a patient server only ends its step, and adds the very last token, which needs no draft."""
    traces, load = one_item(tokens=60), replace(SHORT, duration=60)
    group = replace(BESIDE, device="pi-5")
    patient = finished(simulate(Fleet(replace(HUB, draft_wait=100.0), (group,)), traces, load))[0]
    hasty = finished(simulate(Fleet(replace(HUB, draft_wait=0.05), (group,)), traces, load))[0]
    assert later_chunks(patient) <= len(patient.rounds) + 1
    assert later_chunks(hasty) > 2 * len(hasty.rounds)


def later_chunks(record: RequestRecord) -> int:
    """Chunks after that of the first round."""
    return sum(arrival.time > record.rounds[0].answered for arrival in record.arrivals)


def test_rounds_are_those_that_the_traces_imply() -> None:
    result = simulate(Fleet(HUB, (replace(BESIDE, confidence=0.5),)), TRACES, replace(SHORT, duration=20))
    items = {item.item: item for item in TRACES.items}
    records = finished(result)
    assert len({record.item for record in records}) > 5
    for record in records:
        found = [(round.drafted, round.accepted) for round in record.rounds]
        assert found == rounds_by_hand(items[record.item], ConfidenceLength(4, confidence=0.5)), record.item


def rounds_by_hand(item: ItemTrace, stop: FixedLength) -> list[tuple[int, int]]:
    """Drafted and accepted tokens of each round, where an empty block hands one token to the server."""
    place, rounds = 0, []
    longest = max(len(each.target_ids) for each in TRACES.items)
    while place < len(item.target_ids):
        proposal = item.proposals[place]
        tokens = map(DraftToken, proposal.ids, proposal.confidences)
        limit = longest - place - 1
        block = tuple(pull_tokens(stop, tokens, stop.most(limit), lambda: False))
        accepted = common_prefix([token.id for token in block], item.target_ids[place:])
        if block:
            rounds.append((len(block), accepted))
        place += accepted + 1
    return rounds
