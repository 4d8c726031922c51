"""For every test: one thread for torch (tests share few cores with the processes they start), and no user's files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What the user of this machine configured or calibrated is no part of any test.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no such folder")


@pytest.fixture
def own_calibration(tmp_path, monkeypatch):
    """Where the calibration of a test's own configuration folder is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPENSLED_NO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "opensled" / "profiles" / "devices" / "this-machine.toml"
