"""Stages "kernels" and "answers" of benchmarks/gpu in miniature: what is right holds, and a planted bug is named."""

from __future__ import annotations

import json
import random
import time

import pytest
import torch

from lab.benchmarks.gpu import answers, drawn_ids, kernels
from lab.benchmarks.gpu.answer_judge import Judge
from lab.benchmarks.gpu.answer_texts import Draft, Writer, questions
from lab.benchmarks.gpu.checks import Check, run_checks
from lab.benchmarks.gpu.stage import Stage
from opensled.models.store import model_path
from verify_server.engine.torch.torch_engine import TorchEngine, load

TINY = str(model_path("tiny"))
CPU = torch.device("cpu")


@pytest.fixture
def stage(tmp_path) -> Stage:
    return Stage(tmp_path / "2-kernels.json", time.monotonic() + 600, "cpu")


def run_some(stage: Stage, *beginnings: str) -> list[str]:
    """Runs the checks with such names; returns those that failed, as the file has them."""
    checks = [check for check in kernels.planned(stage, True) if check.name.startswith(beginnings)]
    assert len(checks) >= len(beginnings)
    run_checks(stage, checks)
    document = json.loads(stage.path.read_bytes())
    assert document["holds"] is (not document["failed"]) and len(document["checks"]) == len(checks)
    return document["failed"]


ERRORS = ("errors, float64", "errors, bfloat16")
BITS = "bits of a row in any company"


def test_the_kernels_hold(stage) -> None:
    pytest.importorskip("triton")
    assert run_some(stage, *ERRORS, BITS, "noise", "drawn ids") == []


def test_kernels_that_differ_on_where_a_split_ends_are_wrong(stage, monkeypatch) -> None:
    pytest.importorskip("triton")
    from verify_server.engine.torch import triton_attention

    real = triton_attention.join_constants
    doubled = {"PLACES": 2 * triton_attention.SPLIT}
    monkeypatch.setattr(triton_attention, "join_constants", lambda *given: {**real(*given), **doubled})
    assert run_some(stage, *ERRORS) == ["errors, bfloat16, odd heads", "errors, float64, odd heads"]
    assert all(check["largest_error"] > 2 * check["tolerance"] for check in stage.document["checks"])


def test_a_row_whose_last_bit_depends_on_its_step_is_found(stage, monkeypatch) -> None:
    pytest.importorskip("triton")
    from verify_server.engine.torch import triton_attention

    real = triton_attention.attend

    def attend(query, *rest):
        return real(query, *rest) * (1 + 2.0**-52 * (len(query) % 5))

    monkeypatch.setattr(triton_attention, "attend", attend)
    assert run_some(stage, "errors, float64", BITS) == [f"{BITS}, float64, window of 60"]
    assert stage.document["checks"][-1]["differing"] > 0


def test_a_check_that_breaks_off_hides_no_other_and_time_that_is_up_is_told(stage) -> None:
    def broken() -> dict:
        raise RuntimeError("an illegal memory access")

    good = Check("good", lambda: {"holds": True})
    run_checks(stage, [Check("broken", broken), good])
    stage.deadline = time.monotonic()
    run_checks(stage, [good])
    found = json.loads(stage.path.read_bytes())
    assert found["failed"] == ["broken"] and not found["holds"] and found["left_out"] == ["good"]
    assert found["checks"][0]["error"] == "RuntimeError: an illegal memory access"
    assert "broken" in "".join(found["checks"][0]["traceback"])


def test_ids_that_are_not_the_processors_are_wrong(monkeypatch) -> None:
    real = drawn_ids.TorchScores.sample_groups
    monkeypatch.setattr(
        drawn_ids.TorchScores,
        "sample_groups",
        lambda self, requests: [[(id + 1) % 500 for id in answer] for answer in real(self, requests)],
    )
    found = drawn_ids.same_ids(CPU, 500, 14, torch.float32)
    assert not found["holds"] and found["wrong"] == 14


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    return load(TINY, "cpu", "float32", 160, "sdpa", "exact", graphs="off")


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(TINY, torch.float32)


def verdict(engine: TorchEngine, judge: Judge) -> dict:
    size = answers.SMALL
    writer = Writer(engine, random.Random(1), size.largest)
    asked = questions(size.questions, engine.info.vocab_size, size.tokens, size.prompts)
    plain, drafted = answers.written(writer, asked)
    found = answers.told(writer, plain, drafted) | {"level": engine.info.numerics}
    found |= judge.verdict([(each.question, each.tokens) for each in (*plain, *drafted)])
    return found


def test_drafts_of_all_kinds_change_no_answer(engine, judge) -> None:
    found = verdict(engine, judge)
    assert answers.holds(found) and found["answers"] == 20 and found["flips"] == 0
    drafts = found["drafts"]
    assert drafts["wrong"]["accepted"] == 0 and drafts["right"]["accepted"] == drafts["right"]["drafted"] > 0
    assert (
        drafts["tree"]["tokens_per_step"] > 1.5
        and 0 < drafts["mixed"]["accepted"] < drafts["mixed"]["drafted"]
    )


def test_an_engine_that_forgets_to_compact_does_not_hold(engine, judge, monkeypatch) -> None:
    monkeypatch.setattr(TorchEngine, "compact", lambda self, blocks, moves: None)
    found = verdict(engine, judge)
    assert found["wrong"] > 0 and found["differ"] > 0 and not answers.holds(found)
    assert {kind for kind, facts in found["drafts"].items() if facts["differ"]} <= {"tree", "wrong tree"}


def test_the_path_of_a_draft_is_the_engines_own() -> None:
    tree = Draft((5, 6, 7, 6, 9), (-1, -1, 1, 0, 3), is_tree=True)
    assert tree.path_of([5, 6, 0, 0, 9, 4]) == [0, 3, 4] and [tree.depth(i) for i in range(5)] == [
        1,
        1,
        2,
        2,
        3,
    ]
    assert (
        tree.path_of([6, 0, 8, 0, 0, 0]) == [1] and tree.path_of([1] * 6) == [] and Draft().path_of([3]) == []
    )
