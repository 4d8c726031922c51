"""`python -m lab.benchmarks.vllm_engine --quick` on real servers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lab.benchmarks.vllm_engine import DEVICES, OURS, STOCK


@pytest.mark.long
def test_every_contender_writes_all_of_its_tokens(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lab.benchmarks.vllm_engine", "--quick", "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=1200)
    document = json.loads((tmp_path / "vllm_engine.json").read_text())
    turns = document["turns"]
    assert {turn["contender"] for turn in turns} == {STOCK, OURS, *DEVICES}
    assert all(turn["tokens"] == 32 * turn["users"] and turn["steps"] > 0 for turn in turns)
    drafted = {turn["contender"]: turn["accepted"] for turn in turns if turn["users"] == 1}
    assert all(drafted[name] > 0 for name in DEVICES) and drafted[OURS] == drafted[STOCK] == 0
    assert not any(turn["other"] for turn in turns), "in float32 no text depends on drafts"
