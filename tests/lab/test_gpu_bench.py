"""benchmarks/gpu/run.sh without a GPU: every stage in miniature from a bare checkout, and what a cut-off run leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hw_profiles import catalog
from lab.benchmarks.gpu import __main__ as runner
from lab.benchmarks.gpu import profile, summary, wheels
from lab.benchmarks.gpu.heard import summarise
from lab.benchmarks.gpu.replay import NO_ID, Recording, ServerReplay, prompt_of, write_texts
from lab.benchmarks.gpu.streams import Heard
from opensled.core.messages import SamplingParams
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


def test_all_stages_end_in_miniature_and_write_eight_files(tmp_path) -> None:
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


def test_a_run_without_time_cuts_stages_off_and_still_tells_of_each(tmp_path) -> None:
    done = run(tmp_path / "out", "3")
    assert done.returncode == 1
    assert list(documents(tmp_path / "out")) == STAGES
    assert "cut off" in (tmp_path / "out/summary.md").read_text()


def test_a_stage_that_is_cut_off_keeps_what_it_had(tmp_path) -> None:
    path = tmp_path / "5-users.json"
    path.write_text(json.dumps({"stage": "users", "state": "running", "cells": [1]}))
    runner._close(path, "users", "cut off", 9.04)
    assert json.loads(path.read_bytes()) == {
        "stage": "users",
        "state": "cut off",
        "cells": [1],
        "seconds": 9.0,
    }


def test_a_summary_of_half_a_document_says_so() -> None:
    text = summary.text({"users": {"stage": "users", "state": "cut off", "label": "emulated"}})
    assert "## Users (emulated; cut off" in text and "is not there" in text


def test_only_newer_wheels_are_put_in_front(tmp_path) -> None:
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


def test_replayed_drafts_are_right_as_often_as_asked_and_each_drafter_draws_its_own() -> None:
    device, server = (RECORDING.drafted(0.7, drafter) for drafter in ("device", "server"))
    for ids in (device, server):
        assert all(one in (other, NO_ID) for one, other in zip(ids, RECORDING.text))
        assert 0.6 < sum(one != NO_ID for one in ids) / len(ids) < 0.8
    assert device != server
    trace = RECORDING.trace(0.7, 500)
    assert trace.proposals[7].ids == device[7:15] and trace.prompt_ids == prompt_of(4, 20, 0.7, 500)
    assert trace.prompt_ids[:-1] == prompt_of(4, 20, 0.8, 500)[:-1]


def test_a_server_drafts_what_was_recorded_for_the_users_prompt(tmp_path) -> None:
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


def test_what_users_got_is_counted_in_the_window_alone() -> None:
    fast, slow = heard(1, [0.5, 1.0, 1.1, 1.2, 2.5]), heard(2, [1.0, 1.4])
    found = summarise([fast, slow], 1.0, 2.0, (4, 10))
    assert found["tokens_per_s"] == pytest.approx(10)
    assert found["pace_median"] == pytest.approx((20 + 5) / 2)
    assert found["held"] == {"4": True, "10": False} and found["gap_p99_s"] == pytest.approx(0.4)
    assert found["accepted_share"] == 0.5 and found["tokens_per_block"] == 4


def test_a_profile_finds_the_law_that_made_its_steps() -> None:
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


def test_a_profile_is_a_file_that_the_catalog_reads(tmp_path) -> None:
    facts = {"copy_bytes_per_s": 3e12, "bf16_matrix_flops": 8e14}
    fit = profile.Fit(2.5e12, 0.002, 0.0, [-0.0005, 0.0007])
    made = profile.profile_of(catalog.accelerator("h100"), fit, facts, "a test")
    (tmp_path / "measured.toml").write_text(profile.toml(made, "a test"))
    read = catalog.accelerator(str(tmp_path / "measured.toml"))
    assert read.measured and read.bandwidth_gb_s.typical == 2500 and read.bandwidth_gb_s.max == 3000
    assert (read.step_overhead_ms.min, read.step_overhead_ms.max) == (1.5, 2.7)
    assert read.tflops.typical == 800 and read.hour_usd == catalog.accelerator("h100").hour_usd
