"""A draft head beside the target in the simulator, in the replay of an emulated server, and in `opensled plan`."""

import json
from dataclasses import replace

import pytest

from lab.testbed.baselines import DRAFT_BESIDE, OF_HEADS, OPENSLED, SERVER_SD, USUAL
from lab.testbed.emulation.draft_head import KINDS, OWN, HeadCost, HeadProfile
from lab.testbed.emulation.emulated_accelerator import VARIABLE, environment
from lab.testbed.emulation.recorded_drafter import load
from lab.testbed.emulation.recorded_head import RecordedHead
from lab.testbed.emulation.step_law import StepLaw, StepPiece
from lab.testbed.fleet import Fleet, Group, Server, read_fleet
from lab.testbed.load.load import Load
from lab.testbed.load.records import RequestRecord, RunResult
from lab.testbed.load.server_process import RECORDED, command
from lab.testbed.planner import capacity_law as law
from lab.testbed.planner.setting import assumed, of_fleet
from lab.testbed.simulated.compare import throughput
from lab.testbed.simulator import simulate
from lab.testbed.traces import write_traces
from opensled.cli.main import main
from opensled.core.errors import UsageError
from opensled.core.messages import SamplingParams
from tests.lab.made_traces import made
from tests.lab.simulated_drafts import ask, fleet
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask

SHORT = Load(warmup=2.0, duration=10.0)
HUB = Server(accelerator="agx-orin", target="dense-8b", weight_bits=8, context=512)

every_kind = pytest.mark.parametrize("kind", OWN)


def law_of(kind: str) -> StepLaw:
    return StepLaw.of(replace(HUB, draft=kind))


# -- what it drafts, and what that takes ------------------------------------------------------------------------


@every_kind
def test_it_proposes_what_was_recorded_in_one_pass_whatever_is_asked_for(kind):
    traces, law, spent = made(acceptance=1.0, tokens=32), law_of(kind), list[float]()
    head = RecordedHead(traces.items, law, spent.append)
    item = traces.items[0]
    for most in (1, 3, 16):
        [found] = head.propose([ask(traces, 1, most)])
        longest = {"specformer": 5, "ctc": 7}[kind]
        assert [token.id for token in found.block.tokens] == list(item.proposals[1].ids[: min(most, longest)])
        assert (found.block.base, found.read, found.unread) == (len(item.prompt_ids) + 1, 0, 0)
    assert spent == [law.pass_s([StepPiece(1, len(item.prompt_ids))])] * 3
    head.propose([ask(traces, 1, 2), ask(traces, 1, 5, session=2)])
    assert spent[0] < spent[3] < 1.1 * spent[0]


def test_where_nothing_more_was_recorded_a_draft_ends():
    traces, spent = made(acceptance=1.0, tokens=8), list[float]()
    head = RecordedHead(traces.items, law_of("ctc"), spent.append)
    item = traces.items[0]
    [found] = head.propose([ask(traces, len(item.target_ids), 4)])
    assert found.block.tokens == () and len(spent) == 1
    with pytest.raises(AssertionError, match="nothing is recorded"):
        head.propose([Ask(2, "", (1, 2, 3, 4), 4, SamplingParams(), b"")])


@every_kind
def test_an_emulated_server_replays_a_head_where_it_is_told_of_one(kind, tmp_path, monkeypatch):
    server = replace(HUB, draft=kind)
    write_traces(path := tmp_path / "drafts.jsonl.gz", traces := made())
    monkeypatch.setenv(VARIABLE, environment(server, 0.001, str(path))[VARIABLE])
    drafter = load(ServeConfig(), None)
    assert isinstance(drafter, RecordedHead)
    assert drafter.propose([ask(traces, 1)])[0].block.tokens
    assert drafter.first_cost(law_of(kind).cost).max_passes == 1


@every_kind
def test_a_server_process_is_told_of_its_head(kind):
    for server, drafter in ((replace(HUB, draft=kind), RECORDED), (Server(draft=kind), kind)):
        words = command(server, 1.0)
        assert words[words.index("--server-drafter") + 1] == drafter


def test_a_fleet_s_file_may_name_a_head(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text('[server]\naccelerator = "agx-orin"\nweight_bits = 8\ndraft = "specformer"\n')
    assert isinstance(read_fleet(path).server.draft_cost, HeadCost)


# -- in the simulator -------------------------------------------------------------------------------------------


def test_heads_are_baselines_that_are_asked_for_by_name():
    assert {*OF_HEADS} == {f"{name}-{kind}" for name in (SERVER_SD, OPENSLED) for kind in KINDS}
    assert {*OF_HEADS} <= {*DRAFT_BESIDE} and not {*OF_HEADS} & {*USUAL}
    for name in (SERVER_SD, OPENSLED):
        whole, headed = fleet(name), fleet(f"{name}-ctc")
        assert headed == replace(whole, server=replace(whole.server, draft="ctc"))


def verdicts(result: RunResult) -> dict[str, list[int]]:
    """By item of each finished request the tokens of its verdicts."""
    done: list[RequestRecord] = [record for record in result.requests if record.finish_reason]
    return {record.item: [arrival.tokens for arrival in record.arrivals] for record in done}


@every_kind
def test_a_head_that_is_as_often_right_writes_the_same_verdicts_in_less_time(kind):
    """A model has as many passes as its drafts have tokens, and reads prompts."""
    traces = made(12, 0.8, tokens=48)
    head, model = (
        simulate(fleet(name, users=1), traces, SHORT) for name in (f"{SERVER_SD}-{kind}", SERVER_SD)
    )
    shared = verdicts(head).keys() & verdicts(model).keys()
    assert len(shared) >= 4
    assert all(verdicts(head)[item] == verdicts(model)[item] for item in shared)
    assert (throughput(head) or 0) > (throughput(model) or 0) > 0
    assert head.server.drafting_s / head.server.steps < 0.7 * model.server.drafting_s / model.server.steps


@every_kind
def test_a_step_s_drafts_take_one_pass_whatever_their_length(kind):
    traces = made(12, 1.0, tokens=48)
    runs = [simulate(fleet(f"{SERVER_SD}-{kind}", length, 1), traces, SHORT).server for length in (1, 2, 4)]
    pass_s = law_of(kind).pass_s([StepPiece(1, 90)])  # behind the longest text
    assert all(0.7 * pass_s < run.drafting_s / run.steps < pass_s for run in runs)
    tokens = [run.tokens / run.step_sessions for run in runs]
    assert tokens == sorted(tokens) and tokens[2] > 1.5 * tokens[0]


@pytest.mark.parametrize("kind", ["specformer", pytest.param("ctc", marks=pytest.mark.long)])
def test_a_head_that_drafts_in_vain_soon_drafts_no_more(kind):
    traces = made(12, 0.0, tokens=48)
    vain, plain, fixed = (
        throughput(simulate(fleet(name), traces, SHORT)) or 0
        for name in (f"{OPENSLED}-{kind}", "opensled-device", f"{SERVER_SD}-{kind}")
    )
    assert vain > 0.9 * plain > fixed


@every_kind
def test_a_head_takes_memory_from_sessions(kind):
    beside = replace(HUB, draft=kind, context=8192)
    assert 0 < beside.sessions_that_fit < replace(beside, draft="").sessions_that_fit
    with pytest.raises(UsageError, match=f"beside a {kind} draft"):
        simulate(Fleet(replace(beside, context=10_000_000)), made(), SHORT)


# -- in the plan ------------------------------------------------------------------------------------------------


def test_the_law_of_a_head_is_one_pass_and_its_context():
    """A lone user: one pass, one step over the draft and the newest token, whose context the head writes."""
    place = Fleet(HUB, (Group(1, "laptop-cpu", "ethernet"),))
    setting = of_fleet(place, assumed(0.8), f"{SERVER_SD}-specformer")
    head = HeadCost(setting.cost.accelerator, HeadProfile.usual("specformer", setting.cost.target))
    assert setting.draft_cost == head
    step_s = setting.cost.verify_s(5, 512) + head.context_s(5)
    pace = setting.acceptance.tokens[4] / (head.verify_s(1, 512) + step_s)
    assert law.server_sd(setting, 4, 0.999 * pace) >= 1
    assert law.server_sd(setting, 4, 1.001 * pace) == 0
    assert law.server_sd(setting, 6, 1.0) == 0 < law.server_sd(setting, 5, 1.0)


@every_kind
def test_with_the_same_acceptance_a_head_holds_at_least_the_users_of_a_model(kind):
    place = Fleet(HUB, (Group(1, "laptop-cpu", "ethernet"),))
    head, model = (of_fleet(place, assumed(0.8), beside) for beside in (f"{SERVER_SD}-{kind}", SERVER_SD))
    for length in (2, 3, 5):
        assert law.server_sd(head, length, 10) > law.server_sd(model, length, 10) > 0


PLAN = (
    "plan",
    "--accelerator",
    "agx-orin",
    "--weight-bits",
    "8",
    "--acceptance",
    "0.8",
    "--users",
    "1",
    "--json",
)


def test_the_plan_sets_a_head_beside_the_target(capsys):
    plans = {}
    for drafter in ("model", "specformer"):
        assert main([*PLAN, "--server-drafter", drafter]) == 0
        plans[drafter] = json.loads(capsys.readouterr().out)
    head, model = plans["specformer"], plans["model"]
    assert model["head"] is None and head["head"]["label"] == "derived" and head["head"]["params"] > 4e8
    assert head["held"][0]["server"] > model["held"][0]["server"]
    for way in ("alone", "devices"):
        assert head["held"][0][way] == model["held"][0][way]
        assert head["tokens_per_s"][0][way] == model["tokens_per_s"][0][way]
    assert head["tokens_per_s"][0]["server"] != model["tokens_per_s"][0]["server"]
    assert "a specformer head where the server drafts" in head["assumes"]["target"]


def test_a_target_whose_sizes_are_not_known_is_named(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "m"\nsource = "s"\nparams = 8e9\nactive_params = 8e9\nlayers = 32\nkv_heads = 8\nhead_dim = 128\n'
    )
    assert main([*PLAN, "--target", str(path), "--server-drafter", "ctc"]) == 2
    assert "lacks hidden_size, heads, inner_size" in capsys.readouterr().err
    assert main([*PLAN, "--target", str(path)]) == 0
