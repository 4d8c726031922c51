"""`opensled selftest` on a processor: it runs, tells what it found, and notices a wrong engine."""

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.tiny_models import random_model
from verify_server.engine.torch import loading
from verify_server.engine.torch.torch_engine import TorchEngine, load
from verify_server.gpu_check import command, equality
from verify_server.gpu_check.config import SelftestConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_model("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def engine(folder) -> TorchEngine:
    return load(str(folder), "cpu", "float32", 4096, numerics="fast")


def test_it_judges_and_prints(folder, capsys):
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", answers=4)) == 0
    said = capsys.readouterr().out
    assert "a processor" in said and "equality with the processor holds: 4 answers" in said
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", answers=2, json=True)) == 0
    assert json.loads(capsys.readouterr().out)["wrong"] == 0


def test_a_wrong_engine_is_an_exit_code(folder, monkeypatch, capsys):
    def wrong(engine, count):
        for text in answers(engine, count):
            text.tokens[-1] = (text.tokens[-1] + 1) % engine.info.vocab_size
            yield text

    answers = equality.answers
    monkeypatch.setattr(equality, "answers", wrong)
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", answers=2)) == 1
    assert "FAILS" in capsys.readouterr().out


@pytest.mark.parametrize(("judged", "said"), [(0, "before an answer was judged"), (2, "2 answers")])
def test_ctrl_c_keeps_what_was_judged_and_marks_it(folder, monkeypatch, capsys, judged, said):
    monkeypatch.setattr(equality, "compare", interrupted(equality.compare, judged))
    assert command.selftest(SelftestConfig(model=str(folder), device="cpu", answers=4)) == 130
    shown = capsys.readouterr().out
    assert said in shown and ("PARTIAL" in shown) == bool(judged)


def interrupted(measure, after: int):
    """Like `measure`, but Ctrl-C comes after so many of its results."""

    def until_then(*arguments):
        yield from islice(measure(*arguments), after)
        raise KeyboardInterrupt

    return until_then


def test_answers_of_the_engine_are_those_of_the_reference(engine, folder):
    *_, found = equality.compare(equality.answers(engine, 6), reference(folder), torch.float32)
    assert found.holds and found.answers == 6 and found.tokens == 6 * equality.TOKENS


def test_one_wrong_token_is_noticed(engine, folder):
    texts = list(equality.answers(engine, 2))
    texts[1].tokens[-1] = (texts[1].tokens[-1] + 1) % engine.info.vocab_size
    *_, found = equality.compare(texts, reference(folder), torch.float32)
    assert not found.holds and found.wrong == 1


def reference(folder: Path):
    weights = loading.find_weights(str(folder))
    return loading.load_network(weights, torch.device("cpu"), torch.float32)
