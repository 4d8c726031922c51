"""Load on real processes: small fleets, the command, a device that runs already."""

import asyncio
import json
from dataclasses import replace
from itertools import chain, pairwise

import pytest

from lab.testbed.fleet import Fleet, Group, Server
from lab.testbed.load.load import Item, Load
from lab.testbed.load.run import run_fleet, run_on
from lab.testbed.load.server_process import command, ready
from lab.testbed.load.slo import Slo, measured
from lab.testbed.load.sources import heldout_items
from lab.testbed.load.summary import summarise, ttft
from lab.testbed.processes import Process
from lab.testbed.traces import PACKAGED, read_traces
from opensled.cli import main as cli
from opensled.core.messages import ChatMessage
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer

# Users are served in windows of real time, on devices that keep to seconds.
pytestmark = pytest.mark.timed

TOKENS = 8
ITEMS = heldout_items(12, 0, TOKENS)
TRACES = read_traces(PACKAGED / "tiny-llamacpp.jsonl.gz")
WINDOW = Load(warmup=0.3, duration=1.5)
LONGER = replace(WINDOW, duration=3.0)
HERE = Group(3)  # three devices that replay, as fast as this machine is


@pytest.fixture(scope="module")
def server():
    with Process(command(Server(), 1.0), isolated=True) as process:
        yield ready(process, 1.0)


def _run(server, group, load=WINDOW, items=ITEMS, traces=TRACES):
    return asyncio.run(run_on(server, Fleet(groups=(group,)), items, traces, load))


def _right_texts(tokens):
    """What the target writes, by item: of the whole recorded text the first `tokens` tokens."""
    tokenizer = TargetTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())
    return {trace.item: tokenizer.decode(trace.target_ids[:tokens]) for trace in TRACES.items}


def _check_texts(result, tokens=TOKENS):
    """Whole where there was time to finish, and right as far as they go."""
    assert not [record.error for record in result.requests if record.error]
    assert any(record.finish_reason for record in result.requests)
    texts = _right_texts(tokens)
    for record in result.requests:
        assert texts[record.item].startswith(record.text.rstrip("\ufffd"))
        assert record.text == texts[record.item] or not record.finish_reason


def test_devices_that_replay_get_the_targets_own_text_and_every_round_is_noted(server):
    result = _run(server, HERE)
    _check_texts(result)
    figures = summarise(result, Slo(pace=1))
    assert result.label == "real"
    assert figures["served"] == 3
    assert 0 < figures["acceptance_rate"] < 1
    assert 1 < figures["tokens_per_round"] < 5
    assert figures["wasted_draft_tokens"] > 0
    assert figures["bytes_up_per_token"] > 1
    assert figures["steps"] > 0 and 0 < figures["busy_share"] <= 1.05
    for record in measured(result):
        assert all(record.sent < each.sent <= each.answered for each in record.rounds)
        assert record.tokens <= TOKENS and record.prompt_tokens > 0
        assert sum(each.accepted for each in record.rounds) < record.tokens


def test_without_drafts_the_text_is_the_same_and_nothing_is_drafted(server):
    result = _run(server, replace(HERE, drafter="none"))
    _check_texts(result)
    assert not any(record.rounds or record.wasted for record in result.requests)


def test_a_paced_device_on_a_link_is_slower_and_its_bytes_are_those_that_travel(server):
    items = heldout_items(12, 0, 48)  # long enough for drafts to catch up with the server's first tokens
    result = _run(server, replace(HERE, device="orin-nano-super", link="wan-80"), LONGER, items)
    _check_texts(result, 48)
    assert result.label == "emulated"
    rounds = [record.rounds for record in result.requests]
    assert all(each.answered - each.sent > 0.02 for each in chain(*rounds))  # a quarter of the link's median
    pairs = [pair for each in rounds for pair in pairwise(each)]
    assert pairs
    for earlier, later in pairs:  # it drafts 50 tokens/s
        assert later.sent - earlier.answered > 0.02 * later.drafted - 0.002
    for record in measured(result):  # each prompt token takes a byte at least, and so do frames and headers
        assert record.bytes_up > record.prompt_tokens and record.bytes_down > record.tokens


def test_a_user_far_from_a_drafter_beside_the_server_waits_for_his_own_link(server):
    runs = [_run(server, group, LONGER) for group in (HERE, replace(HERE, user_link="wan-110"))]
    quickest = [min(map(ttft, measured(run))) for run in runs]
    assert quickest[1] > quickest[0] + 0.04  # s, of the link's 0.11; other work cannot delay all of dozens
    near, far = (summarise(run, Slo())["bytes_up_per_token"] for run in runs)
    assert 0 < far < near  # drafts do not travel


def test_real_drafters_can_take_part(server):
    """In answers long enough for a device to read its prompt while the server decodes."""
    group = replace(HERE, count=1, live=True, device="laptop-cpu")
    result = _run(server, group, LONGER, items=heldout_items(12, 0, 64))
    _check_texts(result, tokens=64)
    assert sum(each.accepted for record in result.requests for each in record.rounds) > 0


def test_requests_of_an_open_process_come_when_they_are_due(server):
    result = _run(server, HERE, replace(WINDOW, arrivals="poisson", rate=12))
    assert [record.due for record in result.requests] == sorted(record.due for record in result.requests)
    assert all(-0.001 <= record.sent - record.due < 0.5 for record in result.requests)
    assert len(result.requests) > 5


def test_the_next_turn_of_a_chat_holds_the_answer_before(server):
    chat = Item("chat", (ChatMessage("user", "Hello!"),), 8, turns=("How do I bake bread?", "Thanks!"))
    result = _run(server, Group(1, drafter="lookup"), items=[chat], traces=None)
    first, second, third = result.requests[:3]
    assert [record.item for record in (first, second, third)] == ["chat", "chat turn 2", "chat turn 3"]
    assert first.prompt_tokens + first.tokens < second.prompt_tokens < third.prompt_tokens


def test_an_error_of_one_request_is_noted_and_the_run_goes_on(server):
    too_long = Item("too long", tuple([5] * 5000), 8)
    result = _run(server, Group(2, drafter="none"), items=[too_long, ITEMS[0]], traces=None)
    ended = [record for record in result.requests if record.finish_reason or record.error]
    assert {bool(record.error) for record in ended} == {True, False}
    assert all((record.item == "too long") == bool(record.error) for record in ended)


def test_a_device_alone_writes_the_drafts_own_text_at_its_pace():
    group = Group(2, device="orin-nano-super", drafter="alone")
    load = replace(WINDOW, duration=1.5)
    result = asyncio.run(run_fleet(Fleet(groups=(group,)), ITEMS, TRACES, load))
    figures = summarise(result, Slo())
    assert figures["completed"] > 0
    assert figures["pace_median"] == pytest.approx(50, rel=0.01)
    assert figures["positions_per_token"] == 0


FLEET = """
dilation = 1.5
[server]
accelerator = "agx-orin"
weight_bits = 8
[[device]]
count = 3
device = "orin-nano-super"
link = "ethernet"
"""


@pytest.mark.long
def test_the_command_measures_baselines_in_turns_and_says_where_its_figures_come_from(tmp_path, capsys):
    path, out = tmp_path / "fleet.toml", tmp_path / "figures.json"
    path.write_text(FLEET)
    flags = ["--max-tokens", "8", "--seed", "5", "--repeats", "2", "--warmup", "0.5", "--duration", "1.5"]
    words = ["bench", "serve", "--fleet", str(path), "--baselines", "centralized,device-only", *flags]
    assert cli.main([*words, "--json", "--out", str(out)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads(out.read_text())
    assert (document["label"], document["provenance"]["seed"]) == ("emulated", 5)
    assert document["profiles"] == ["agx-orin", "dense-8b", "ethernet", "orin-nano-super"]
    runs = [(run["contender"], run["repeat"]) for run in document["runs"]]
    assert runs == [("centralized", 0), ("device-only", 0), ("centralized", 1), ("device-only", 1)]
    mean = document["means"]["centralized"]["output_throughput"]
    assert mean["low"] <= mean["mean"] <= mean["high"]
    # The hub reads 8 GB of weights for every step: no user of it can read faster than that.
    assert 10 < document["means"]["centralized"]["pace_median"]["mean"] < 25


def test_a_device_that_runs_already_is_measured_over_its_api(server, capsys):
    flags = ["edge", "--server", server.address, "--http", "127.0.0.1:0", "--threads", "1"]
    with Process(flags, isolated=True) as edge:
        url = f"http://{edge.wait_ready()}/v1"
        load = ["--users", "2", "--warmup", "0.3", "--duration", "1.5", "--max-tokens", "8"]
        assert cli.main(["bench", "serve", "--url", url, *load]) == 0
    shown = capsys.readouterr().out
    assert "Load on a fleet (real)" in shown
    assert "2 of 2" in shown
    assert "tokens per round" in shown and "positions per token" not in shown


def test_an_api_that_is_not_there_is_named(capsys):
    assert cli.main(["bench", "serve", "--url", "http://127.0.0.1:9/v1"]) == 5
    assert "127.0.0.1:9" in capsys.readouterr().err
