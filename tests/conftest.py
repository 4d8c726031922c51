"""For every test: one thread for torch (tests share few cores with the processes they start), and no user's files."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# The files that take the longest, in this order: `make test` lists the slowest tests. They start first, so that no
# worker waits for another one at the end.
SLOWEST = (
    "test_cluster_streams",
    "test_goodput_lossless",
    "test_policies_starvation",
    "test_cluster",
    "test_goodput_system",
    "test_engine",
    "test_policies_properties",
    "test_conformance",
    "test_bench",
    "test_plan",
    "test_lossless",
    "test_goodput_processes",
    "test_processes",
    "test_tree_engine",
    "test_bad_input",
    "test_fleet_check",
    "test_model_drafters",
    "test_adaptive",
    "test_edge_lossless",
    "test_draft_tables",
)


def pytest_collection_modifyitems(items):
    places = {f"{name}.py": place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(SLOWEST)))


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory):
    """No test reads what the user of this machine configured, calibrated or fetched."""
    os.environ["OPENSLED_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture
def own_calibration(tmp_path, monkeypatch):
    """Where the calibration of a test's own configuration folder is kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("OPENSLED_NO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "opensled" / "profiles" / "devices" / "this-machine.toml"
