"""benchmarks/gpu/run.sh without a GPU: every stage in miniature from a bare checkout, and what a cut-off run leaves."""

import json
import os
import random
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hw_profiles import catalog
from lab.benchmarks.gpu import __main__ as runner
from lab.benchmarks.gpu import answers, drawn_ids, kernels, profile, summary, wheels
from lab.benchmarks.gpu.answer_judge import Judge
from lab.benchmarks.gpu.answer_texts import Draft, Writer, questions
from lab.benchmarks.gpu.checks import Check, run_checks
from lab.benchmarks.gpu.heard import summarise
from lab.benchmarks.gpu.replay import NO_ID, Recording, ServerReplay, prompt_of, write_texts
from lab.benchmarks.gpu.stage import Stage
from lab.benchmarks.gpu.streams import Heard
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from verify_server.engine.torch.torch_engine import TorchEngine, load
from verify_server.round.drafter import Ask

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["facts", "kernels", "answers", "steps", "users", "profile"]


def run(out: Path, *seconds: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "benchmarks/gpu/run.sh"), str(out), *seconds],
        cwd=out.parent,
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )


def documents(out: Path) -> dict[str, dict]:
    found = [json.loads(path.read_bytes()) for path in sorted(out.glob("?-*.json"))]
    return {each["stage"]: each for each in found}


def test_all_stages_end_in_miniature_and_write_eight_files(tmp_path):
    done = run(tmp_path / "out")
    log = (tmp_path / "out/run.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    found = documents(tmp_path / "out")
    assert list(found) == STAGES
    assert all(each["state"] == "ended" and each.get("holds", True) for each in found.values())
    assert len(list((tmp_path / "out").iterdir())) == 8
    cells = found["users"]["cells"]
    assert {cell["policy"] for cell in cells} == {
        "no drafts",
        "devices (Orin Nano)",
        "server",
        "both (Orin Nano)",
    }
    assert all(cell["texts"] and cell["tokens_per_s"] > 0 and not cell["errors"] for cell in cells)
    assert sum(cell["flips"] for cell in cells) == 0  # float32: nothing rounds so that noise would not decide
    steps = [step for target in found["steps"]["targets"] for way in target["ways"] for step in way["steps"]]
    assert steps and all(step["seconds"] > 0 for step in steps)
    assert found["profile"]["fit"]["bandwidth"] > 0
    assert "the rest of this stage is not there" not in done.stdout and "| 48 | 0.7 | 2 | both" in done.stdout


def test_a_run_without_time_cuts_stages_off_and_still_tells_of_each(tmp_path):
    assert run(tmp_path / "out", "3").returncode == 1
    assert list(documents(tmp_path / "out")) == STAGES
    assert "cut off" in (tmp_path / "out/summary.md").read_text()


def test_a_stage_that_is_cut_off_keeps_what_it_had(tmp_path):
    path = tmp_path / "5-users.json"
    path.write_text(json.dumps({"stage": "users", "state": "running", "cells": [1]}))
    runner._close(path, "users", "cut off", 9.04)
    assert json.loads(path.read_bytes()) == {
        "stage": "users",
        "state": "cut off",
        "cells": [1],
        "seconds": 9.0,
    }


def test_a_summary_of_half_a_document_says_so():
    text = summary.text({"users": {"stage": "users", "state": "cut off", "label": "emulated"}})
    assert "## Users (emulated; cut off" in text and "is not there" in text


def test_only_newer_wheels_are_put_in_front(tmp_path):
    for name in (
        "numpy-1.0-py3-none-any.whl",
        "numpy-999.0-py3-none-any.whl",
        "not_there-1.0-py3-none-any.whl",
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(f"{name.split('-')[0]}_{name.split('-')[1]}.txt", "")
    newer = wheels.unpack_newer(tmp_path, tmp_path / "site")
    assert newer == ["not_there-1.0-py3-none-any.whl", "numpy-999.0-py3-none-any.whl"]
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == [
        "not_there_1.0.txt",
        "numpy_999.0.txt",
    ]


RECORDING = Recording(user=4, context=20, text=tuple(range(100, 400)))


def test_replayed_drafts_are_right_as_often_as_asked_and_each_drafter_draws_its_own():
    device, server = (RECORDING.drafted(0.7, drafter) for drafter in ("device", "server"))
    for ids in (device, server):
        assert all(one in (other, NO_ID) for one, other in zip(ids, RECORDING.text))
        assert 0.6 < sum(one != NO_ID for one in ids) / len(ids) < 0.8
    assert device != server
    trace = RECORDING.trace(0.7, 500)
    assert trace.proposals[7].ids == device[7:15] and trace.prompt_ids == prompt_of(4, 20, 0.7, 500)
    assert trace.prompt_ids[:-1] == prompt_of(4, 20, 0.8, 500)[:-1]


def test_a_server_drafts_what_was_recorded_for_the_users_prompt(tmp_path):
    drafter = ServerReplay(tmp_path / "texts.json")
    text = (*prompt_of(4, 20, 0.7, 500), *RECORDING.text[:3])
    ask = Ask(1, "", text, 4, SamplingParams(), bytes(16))
    assert drafter.propose([ask])[0].block.tokens == ()  # nothing is recorded yet
    drafter.forget(1)
    write_texts(tmp_path / "texts.json", [RECORDING])
    drafted = [token.id for token in drafter.propose([ask])[0].block.tokens]
    assert drafted == list(RECORDING.drafted(0.7, "server")[3:7])


def heard(user: int, times: list[float], tokens: int = 2) -> Heard:
    arrivals = [[(time, tokens) for time in times]]
    return Heard(user, [(1, 2)], arrivals, drafted=8, accepted=4, rounds=2, flips=0, first_s=[0.5], errors=[])


def test_what_users_got_is_counted_in_the_window_alone():
    fast, slow = heard(1, [0.5, 1.0, 1.1, 1.2, 2.5]), heard(2, [1.0, 1.4])
    found = summarise([fast, slow], 1.0, 2.0, (4, 10))
    assert found["tokens_per_s"] == pytest.approx(10)
    assert found["pace_median"] == pytest.approx((20 + 5) / 2)
    assert found["held"] == {"4": True, "10": False} and found["gap_p99_s"] == pytest.approx(0.4)
    assert found["accepted_share"] == 0.5 and found["tokens_per_block"] == 4


def test_a_profile_finds_the_law_that_made_its_steps():
    bandwidth, overhead, flops = 2.5e12, 0.002, 4e14
    way = {"weight_bytes": 16_000_000_000, "kv_bytes_per_token": 131072, "steps": []}
    for texts, drafted, context in ((1, 0, 512), (8, 3, 512), (32, 0, 4096), (64, 0, 8192), (256, 7, 512)):
        rows, kv = texts * (drafted + 1), texts * context * 131072 / bandwidth
        seconds = overhead + kv + max(16e9 / bandwidth, rows * 16e9 / flops)
        way["steps"].append({"texts": texts, "rows": rows, "context": context, "seconds": seconds})
    fit = profile.fitted(way)
    assert fit.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert fit.overhead_s == pytest.approx(overhead, rel=1e-2)
    assert fit.flops == pytest.approx(flops, rel=1e-3)


def test_a_profile_is_a_file_that_the_catalog_reads(tmp_path):
    facts = {"copy_bytes_per_s": 3e12, "bf16_matrix_flops": 8e14}
    fit = profile.Fit(2.5e12, 0.002, 0.0, [-0.0005, 0.0007])
    known = replace(catalog.accelerator("h100"), speeds=catalog.accelerator("dgx-spark").speeds)
    made = profile.profile_of(known, fit, facts, "a test")
    (tmp_path / "measured.toml").write_text(profile.toml(made, "a test"))
    read = catalog.accelerator(str(tmp_path / "measured.toml"))
    assert read.measured and read.bandwidth_gb_s.typical == 2500 and read.bandwidth_gb_s.max == 3000
    assert (read.step_overhead_ms.min, read.step_overhead_ms.max) == (1.5, 2.7)
    assert read.speeds == known.speeds and read.hour_usd == known.hour_usd and not read.rows
    assert read.tflops.typical == 800


# -- kernels ------------------------------------------------------------------------------------------------------


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


def test_the_kernels_hold(stage):
    pytest.importorskip("triton")
    assert run_some(stage, *ERRORS, BITS, "noise", "drawn ids") == []


def test_kernels_that_differ_on_where_a_split_ends_are_wrong(stage, monkeypatch):
    pytest.importorskip("triton")
    from verify_server.engine.torch import triton_attention

    real = triton_attention.join_constants
    doubled = {"PLACES": 2 * triton_attention.SPLIT}
    monkeypatch.setattr(triton_attention, "join_constants", lambda *given: {**real(*given), **doubled})
    assert run_some(stage, *ERRORS) == ["errors, bfloat16, odd heads", "errors, float64, odd heads"]
    assert all(check["largest_error"] > 2 * check["tolerance"] for check in stage.document["checks"])


def test_a_row_whose_last_bit_depends_on_its_step_is_found(stage, monkeypatch):
    pytest.importorskip("triton")
    from verify_server.engine.torch import triton_attention

    real = triton_attention.attend

    def attend(query, *rest):
        return real(query, *rest) * (1 + 2.0**-52 * (len(query) % 5))

    monkeypatch.setattr(triton_attention, "attend", attend)
    assert run_some(stage, "errors, float64", BITS) == [f"{BITS}, float64, window of 60"]
    assert stage.document["checks"][-1]["differing"] > 0


def test_a_check_that_breaks_off_hides_no_other_and_time_that_is_up_is_told(stage):
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


def test_ids_that_are_not_the_processors_are_wrong(monkeypatch):
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


def test_drafts_of_all_kinds_change_no_answer(engine, judge):
    found = verdict(engine, judge)
    assert answers.holds(found) and found["answers"] == 20 and found["flips"] == 0
    drafts = found["drafts"]
    assert drafts["wrong"]["accepted"] == 0 and drafts["right"]["accepted"] == drafts["right"]["drafted"] > 0
    assert (
        drafts["tree"]["tokens_per_step"] > 1.5
        and 0 < drafts["mixed"]["accepted"] < drafts["mixed"]["drafted"]
    )


def test_an_engine_that_forgets_to_compact_does_not_hold(engine, judge, monkeypatch):
    monkeypatch.setattr(TorchEngine, "compact", lambda self, blocks, moves: None)
    found = verdict(engine, judge)
    assert found["wrong"] > 0 and found["differ"] > 0 and not answers.holds(found)
    assert {kind for kind, facts in found["drafts"].items() if facts["differ"]} <= {"tree", "wrong tree"}


def test_the_path_of_a_draft_is_the_engines_own():
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
