"""The kernels compile for GPUs that are not here, fit into each, and keep what they work on in registers.

`make kernel-check` tries four kinds of GPUs and three precisions; here the commonest heads on two.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed; make test installs it")

SHARED = 99 * 1024  # bytes that a block may have on the smallest of them, compute capability 8.9


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> list[dict]:
    command = [sys.executable, "-m", "tests.triton_compiled", "80,90", "bfloat16", "1"]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("kernels"))}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return [json.loads(line) for line in said.splitlines()]


def test_the_kernels_fit(rows):
    assert [row["kernel"] for row in rows].count("attend_split") == 4
    assert all(0 < row["shared"] <= SHARED for row in rows)


def test_nothing_spills_without_a_window(rows):
    assert not [row for row in rows if row["stack"] and not row.get("window")]
