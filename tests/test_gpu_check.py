"""`opensled selftest` in its short form, on a processor: it runs, tells what it found, and notices a wrong engine."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from opensled.core.errors import UsageError
from tests.tiny_models import random_model
from verify_server.engine.torch import loading
from verify_server.engine.torch.torch_engine import TorchEngine, load
from verify_server.gpu_check import command, equality, measurement, report, step_times
from verify_server.gpu_check.config import SelftestConfig, numbers


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(folder) -> TorchEngine:
    return load(str(folder), "cpu", "float32", 4096, numerics="fast")


def test_the_short_form_writes_a_document_and_prints_tables(folder, tmp_path, capsys) -> None:
    out = tmp_path / "check.json"
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", short=True, out=str(out))) == 0
    document = json.loads(out.read_text())
    assert [way["attention"] for way in document["ways"]] == ["sdpa", "gather"]
    assert all(len(way["steps"]) == 3 and way["steps"][0]["seconds"] > 0 for way in document["ways"])
    assert document["equality"]["answers"] == 4 and document["equality"]["wrong"] == 0
    assert "partial" not in document
    said = capsys.readouterr().out
    assert "Equality with the processor holds: 4 answers" in said and "| 4 | 64 |" in said


def test_a_way_that_fails_is_a_result_and_the_exit_code_tells_of_the_first(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(command, "ON_A_PROCESSOR", (command.Way("triton", "off", "nonsense"),))
    out = tmp_path / "check.json"
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", short=True, out=str(out))) == 1
    assert "does not work here: unknown numerics" in capsys.readouterr().out


@pytest.mark.parametrize(("judged", "steps"), [(2, 0), (4, 0), (4, 2)])
def test_ctrl_c_keeps_what_was_measured_and_marks_it(
    folder, tmp_path, monkeypatch, capsys, judged, steps
) -> None:
    """In the comparison of 4 answers, or later in the steps."""
    if judged < 4:
        monkeypatch.setattr(equality, "compare", interrupted(equality.compare, judged))
    monkeypatch.setattr(measurement, "step_times", interrupted(step_times.step_times, steps))
    out = tmp_path / "check.json"
    config = SelftestConfig(model=str(folder), device="cpu", short=True, out=str(out))
    assert command.selftest(config) == 130
    document = json.loads(out.read_text())
    [way] = document["ways"]
    assert document["equality"]["answers"] == judged and len(way.get("steps", [])) == steps
    done = 1 + 4 + 1 + judged + steps  # the target, its answers, the reference
    assert document["partial"] == f"{done} of 17 parts were measured before Ctrl-C"
    said = capsys.readouterr().out
    assert "**PARTIAL: " in said and f"holds: {judged} answers" in said and str(out) in said


def test_ctrl_c_before_a_target_is_loaded(folder, tmp_path, monkeypatch, capsys) -> None:
    def load(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(measurement.torch_engine, "load", load)
    out = tmp_path / "check.json"
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", short=True, out=str(out))) == 130
    assert "not loaded yet" in capsys.readouterr().out and "partial" in json.loads(out.read_text())


def interrupted(measure, after: int):
    """Like `measure`, but Ctrl-C comes after so many of its results."""

    def until_then(*arguments):
        yield from islice(measure(*arguments), after)
        raise KeyboardInterrupt

    return until_then


def test_answers_of_the_engine_are_those_of_the_reference(engine, folder) -> None:
    *_, found = equality.compare(equality.answers(engine, 6), reference(folder), torch.float32)
    assert found.holds and found.answers == 6 and found.tokens == 6 * equality.TOKENS


def test_one_wrong_token_is_noticed(engine, folder) -> None:
    texts = list(equality.answers(engine, 2))
    texts[1].tokens[-1] = (texts[1].tokens[-1] + 1) % engine.info.vocab_size
    *_, found = equality.compare(texts, reference(folder), torch.float32)
    assert not found.holds and found.wrong == 1


def reference(folder: Path):
    weights = loading.find_weights(str(folder))
    return loading.load_network(weights, torch.device("cpu"), torch.float32)


def test_the_floor_counts_each_weight_once_and_the_kv_of_every_text(engine) -> None:
    [small, large] = step_times.step_times(engine, (1, 4), (64,), 1, 1e9)
    assert isinstance(small, step_times.StepTime) and isinstance(large, step_times.StepTime)
    read = (large.floor - small.floor) * 1e9
    assert read == pytest.approx(3 * 64 * engine.kv_bytes)
    assert small.floor * 1e9 == pytest.approx(step_times.weight_bytes(engine) + 64 * engine.kv_bytes)


def test_steps_that_do_not_fit_are_said_to(engine) -> None:
    found = list(step_times.step_times(engine, (1, 1000), (64, 10**6), 1, 1e9))
    assert found[1] == step_times.TooMuchKV(1000, 64, 4000)
    assert len(found) == 2  # no text is longer than the model's context


def test_lists_of_numbers_are_read_or_refused() -> None:
    assert numbers("1, 8,64") == (1, 8, 64)
    for wrong in ("", "0", "1,,2", "a", "1.5"):
        with pytest.raises(UsageError, match="whole numbers"):
            numbers(wrong)


def test_the_machine_is_named() -> None:
    facts = report.machine(torch.device("cpu"))
    assert facts["device"] == "cpu" and facts["torch"] == torch.__version__
