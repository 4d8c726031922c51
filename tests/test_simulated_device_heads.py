"""Draft heads on devices in simulation and emulation: the law of a block, which rows travel, and what waits for them.

Run: pytest tests/test_simulated_device_heads.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import fmean

import pytest

from hw_profiles import catalog
from hw_profiles.device_head import CALL_S, DRAFT_BITS, DeviceHeadCost, row_bytes, rows_bytes, states_of
from hw_profiles.draft_head import KINDS, HeadProfile
from opensled.errors import UsageError
from opensled.features import MAX_BYTES, NEWEST, FeatureRows
from opensled.messages import SamplingParams
from opensled.sampling import Sampler
from opensled_testbed.emulation.emulated_accelerator import EmulatedEngine
from opensled_testbed.emulation.recorded_device_head import RecordedDeviceHead
from opensled_testbed.emulation.step_law import StepLaw
from opensled_testbed.fleet import Fleet, Group, Server, read_fleet
from opensled_testbed.load.load import Item, Load
from opensled_testbed.load.records import RunResult
from opensled_testbed.load.run import run_fleet
from opensled_testbed.recordings import DEFAULT_PAIR, head_drafter, recorded_heads, recording
from opensled_testbed.simulator import simulate
from opensled_testbed.traces import read_traces
from tests.fakes import FakeEngine
from tests.made_traces import made
from verify_server.engine.base import Segment

HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512)
SIZE = 4096  # of a hidden state of that target
SHORT = Load(warmup=1.0, duration=15.0)
TRACES = made(tokens=48)
DEVICE = Group(1, "laptop-cpu", "lte", drafter="head", head="ctc", draft_length=8)

every_kind = pytest.mark.parametrize("kind", KINDS)


def cost(kind: str, bits: float = 32.0, device: str = "pi-5") -> DeviceHeadCost:
    head = HeadProfile.usual(kind, catalog.target("dense-8b"))
    return DeviceHeadCost.of(catalog.device(device), head, bits)


# -- the law -----------------------------------------------------------------------------------------------------


@every_kind
def test_a_block_reads_the_head_once_or_computes_all_of_its_places(kind: str) -> None:
    exported, profile = cost(kind), catalog.device("pi-5")
    assert profile.draft_heads is not None
    read = exported.weight_bytes / profile.draft_heads.bandwidth_gb_s.typical / 1e9
    computed = exported.head.draft_operations / profile.draft_heads.gflops.typical / 1e9
    assert exported.block_s == pytest.approx(max(read, computed) + CALL_S)
    assert exported.weight_bytes == pytest.approx(
        2 * exported.head.pass_bytes
    )  # 32 bits, where the server has 16


@every_kind
def test_few_bits_are_reckoned_by_the_runtime_of_the_draft_model(kind: str) -> None:
    few, draft = cost(kind, 4.0), catalog.device("pi-5").draft("0.5b")
    params = catalog.target("draft-0.5b").params
    read = few.weight_bytes / (params * DRAFT_BITS / 8 * draft.decode_per_s.typical)
    computed = few.head.draft_operations / (2 * params * draft.prefill_per_s.typical)
    assert few.block_s == pytest.approx(max(read, computed) + CALL_S)
    assert few.block_s < cost(kind).block_s


@every_kind
def test_rows_cost_by_their_number_and_by_the_states_of_each(kind: str) -> None:
    head = cost(kind)
    assert head.rows_s(0) == 0 and 0 < head.rows_s(1) <= head.rows_s(NEWEST)
    assert row_bytes(head.states, SIZE) == states_of(kind) * (SIZE + 4)
    assert head.prompt_bytes <= MAX_BYTES + 100


def test_every_device_says_how_fast_it_computes_heads() -> None:
    for name in catalog.names("devices"):
        assert catalog.device(name).draft_heads is not None, name
    unknown = replace(catalog.device("pi-5"), draft_heads=None)
    with pytest.raises(UsageError, match=r"\[draft_heads\]"):
        DeviceHeadCost.of(unknown, cost("ctc").head)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('head = "exit"\ndevice = "pi-5"', "choose from"),
        ('head = "ctc"', "name device and accelerator"),
        ('head = "ctc"\ndevice = "pi-5"\nlive = true', "not live"),
    ],
)
def test_a_fleet_whose_heads_cannot_be(tmp_path, line: str, said: str) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(f'[server]\naccelerator = "agx-orin"\n[[device]]\ndrafter = "head"\n{line}\n')
    with pytest.raises(UsageError, match=said):
        read_fleet(path)


# -- one device ----------------------------------------------------------------------------------------------------


def test_a_head_waits_for_the_row_before_the_newest_token() -> None:
    spent: list[tuple[float, int]] = []
    head = RecordedDeviceHead(cost("ctc"), lambda seconds, tokens: spent.append((seconds, tokens)))
    trace = next(item for item in TRACES.items if len(item.target_ids) > 3)
    prompt = len(trace.prompt_ids)
    head.trace = trace
    head.begin(trace.prompt_ids, Sampler(SamplingParams(), b""))
    assert not list(head.propose()) and not spent
    head.features(FeatureRows(0, SIZE, (1.0,) * prompt, b"", (0,)))
    head.commit(trace.target_ids[:1])
    assert [token.id for token in head.propose()] == list(trace.proposals[1].ids)
    assert spent == [(cost("ctc").rows_s(prompt), 0), (cost("ctc").block_s, len(trace.proposals[1].ids))]
    assert list(head.propose()) and len(spent) == 2  # the pass is not made twice
    head.commit(trace.target_ids[1:3])
    assert not list(head.propose())


# -- whole runs ----------------------------------------------------------------------------------------------------


def run(group: Group, server: Server = HUB) -> RunResult:
    return simulate(Fleet(server, (group,)), TRACES, SHORT)


def bytes_per_token(result: RunResult) -> float:
    done = [record for record in result.requests if record.finish_reason]
    return sum(record.bytes_down for record in done) / sum(record.tokens for record in done)


def first_s(result: RunResult) -> float:
    return fmean(record.arrivals[0].time - record.sent for record in result.requests if record.arrivals)


@every_kind
def test_all_rows_of_committed_positions_travel(kind: str) -> None:
    result = run(replace(DEVICE, head=kind))
    done = [record for record in result.requests if record.finish_reason]
    # The newest token's row is never computed, and those of the last verdict are not sent
    rows = sum(record.prompt_tokens + record.tokens - 1 for record in done)
    sent = sum(record.bytes_down for record in done)
    assert len(done) > 3 and 0.6 < sent / (rows * row_bytes(states_of(kind), SIZE)) < 1.1


def test_the_rows_of_the_prompt_delay_the_first_token() -> None:
    thin, none = run(replace(DEVICE, head="specformer")), run(replace(DEVICE, drafter="none"))
    mean_prompt = fmean(len(item.prompt_ids) for item in TRACES.items)
    longer = 8 * rows_bytes(round(mean_prompt), 4, SIZE) / (catalog.link("lte").down_mbit_s.typical * 1e6)
    assert first_s(thin) - first_s(none) > 0.5 * longer
    assert bytes_per_token(none) < 100 < bytes_per_token(thin)


def test_nothing_is_drafted_before_the_first_token() -> None:
    for record in run(DEVICE).requests:
        if record.rounds and record.arrivals:
            assert record.rounds[0].sent > record.arrivals[0].time


def test_a_faster_head_makes_a_faster_answer() -> None:
    slow, fast = (replace(DEVICE, device="pi-5", link="wifi-good", head_bits=bits) for bits in (32.0, 4.5))
    tokens = [sum(record.tokens for record in run(group).requests) for group in (slow, fast)]
    assert tokens[1] > 1.3 * tokens[0]


def test_shipped_heads_are_recorded_along_the_same_texts() -> None:
    texts = read_traces(recording(DEFAULT_PAIR))
    assert set(recorded_heads()) >= {"ctc", "specformer"}
    for kind in recorded_heads():
        traces = read_traces(recording(DEFAULT_PAIR, head_drafter(kind)))
        assert [item.target_ids for item in traces.items] == [item.target_ids for item in texts.items]
        assert not any(item.proposals[0].ids for item in traces.items), (
            "no row is there before the first token"
        )


# -- emulated ------------------------------------------------------------------------------------------------------


def test_an_emulated_target_sends_states_of_its_size() -> None:
    engine = EmulatedEngine(FakeEngine(num_blocks=20), StepLaw.of(HUB), dilation=1e-3)
    assert engine.tap() == catalog.target("dense-8b").layers and engine.info.hidden_size == SIZE
    scores = engine.forward([Segment((1, 2, 3), 0, (0,), 1, features=(0, 1))])
    data, scales = scores.features((0, 1), [0, 2])
    assert data.shape == (2, 2, SIZE) and data.dtype.name == "int8" and scales.shape == (2, 2)


@pytest.mark.long
def test_real_streams_carry_as_many_bytes_as_simulated_ones() -> None:
    from benchmarks.cell_turns import short_items, shortened

    traces = shortened(read_traces(recording("tiny")), 24)
    items: list[Item] = short_items(24, "tiny")
    fleet = Fleet(HUB, (replace(DEVICE, count=2, link="wifi-good"),), dilation=2.0)
    load = Load(warmup=1.0, duration=6.0)
    real = asyncio.run(run_fleet(fleet, items, traces, load))
    assert not any(record.error for record in real.requests)
    assert bytes_per_token(real) == pytest.approx(bytes_per_token(simulate(fleet, traces, load)), rel=0.2)
