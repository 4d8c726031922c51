"""`opensled doctor` as a whole, and its findings on this device: each one provoked."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest
import tomllib

from edge_client.device.config import DoctorConfig
from edge_client.doctor import install, machine
from edge_client.doctor.doctor import _choose_drafter
from edge_client.doctor.edge_section import with_edge_section
from edge_client.doctor.finding import LONGEST, fail, guard, in_thread, ok, plain, warn
from hw_profiles.detect import container_share
from opensled.core.errors import NotFound, UsageError
from opensled.process import distribution
from tests.terminal import Screen

NOBODY = "127.0.0.1:1"
ROOT = Path(__file__).resolve().parents[1]


def run(*arguments):
    command = [sys.executable, "-m", "opensled", "doctor", *arguments]
    environment = {**os.environ, "OPENSLED_NO_CONFIG": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=ROOT)


def by_check(done):
    return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}


# -- as a whole ------------------------------------------------------------------------------------------


def test_without_a_server_everything_else_is_examined():
    done = run("--server", NOBODY, "--threads", "1", "--json")
    findings = by_check(done)
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 5 and done.stderr == ""
    assert findings["connection"]["status"] == "fail" and "opensled serve" in findings["connection"]["fix"]
    assert findings["draft model"]["status"] == findings["draft speed"]["status"] == "ok"
    assert all(set(item) == {"check", "status", "detail", "fix"} for item in findings.values())
    assert all(bool(item["fix"]) == (item["status"] != "ok") for item in findings.values())


def test_people_get_aligned_colours_within_their_terminal():
    with Screen("doctor", "--server", NOBODY, "--threads", "1", columns=80) as screen:
        assert screen.finish() == 5
    lines = screen.text.splitlines()
    assert all(len(line) <= 80 for line in lines if "fix: " not in line)
    assert "\x1b[31mfail\x1b[0m  connection" in screen.output and ", 1 failure" in lines[-1]


def test_a_pipe_gets_no_colours():
    done = run("--server", NOBODY, "--drafter", "none")
    assert "\x1b" not in done.stdout and "fix: start the server" in done.stdout


@pytest.mark.parametrize("missing", ["numpy", "grpc", "google.protobuf"])
def test_a_broken_library_is_a_finding_and_no_crash(missing):
    script = (
        f"import sys; sys.modules[{missing!r}] = None; from opensled.cli.main import main;"
        f"sys.exit(main(['doctor', '--server', '{NOBODY}', '--drafter', 'none', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    findings = by_check(done)
    assert findings["wire"]["status"] == "fail" or missing == "numpy"
    assert "processor" in findings and "connection" in findings


def test_the_device_stays_light():
    script = (
        "import sys; from opensled.cli.main import main;"
        f"main(['doctor', '--server', '{NOBODY}', '--threads', '1', '--json']);"
        "print([name for name in ('torch', 'llama_cpp', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.stdout.endswith("[]\n")


def test_the_edge_section_counts_where_the_doctor_was_told_nothing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "opensled.toml").write_text("[edge]\nserver = 'hub:1'\nthreads = 3\npace = 2.0\n")
    config = with_edge_section(DoctorConfig(threads=2), "doctor")
    assert (config.server, config.threads, config.pace) == ("hub:1", 2, 2.0)
    (tmp_path / "opensled.toml").write_text("[edge]\nservr = 'hub:1'\n")
    with pytest.raises(UsageError, match="servr"):
        with_edge_section(DoctorConfig(), "doctor")


# -- the walls -------------------------------------------------------------------------------------------


def test_a_check_that_fails_or_hangs_is_a_finding():
    async def broken():
        raise ValueError("odd\x1b[2J")

    async def scenario():
        (error,) = await guard("it", broken(), 5)
        (late,) = await guard("it", in_thread(threading.Event().wait), 0.05)
        return error, late

    error, late = asyncio.run(scenario())
    assert (error.status, error.detail) == ("fail", "ValueError: odd\\x1b[2J")
    assert (late.status, late.detail) == ("fail", "no result within 0.05 s")


def test_details_are_one_short_printable_line():
    assert plain("a\nb\udc80\x07" + "x" * 1000).startswith("a b\\udc80\\x07xxx")
    assert len(plain("x" * 1000)) == LONGEST


# -- installation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "bits", "status", "said"),
    [
        ((3, 11, 7), 64, "ok", "3.11.7"),
        ((3, 9, 1), 64, "fail", "older than 3.10"),
        ((3, 12, 0), 32, "fail", "32-bit"),
    ],
)
def test_python(version, bits, status, said):
    finding = install.check_python(version, bits)
    assert finding.status == status and said in finding.detail


def test_packages(monkeypatch):
    found = install.check_package("numpy")
    assert (found.status, found.detail) == ("ok", metadata.version("numpy"))
    monkeypatch.setitem(sys.modules, "google", None)
    for name in ("protobuf", "numpy"):
        monkeypatch.setitem(sys.modules, install.NEEDED[name], None)
        found = install.check_package(name)
        assert (found.status, found.detail, found.fix) == ("fail", "not installed", distribution.command())


def test_every_requirement_is_looked_for():
    """But tomli, without which no command of an older Python starts."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.match(r"[\w-]+", line)[0] for line in declared} == {*install.NEEDED, "tomli"}


def test_an_extra_is_missed_only_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(install, "find_spec", lambda name: None)
    assert install.check_extra("onnx", "llamacpp").status == "ok"
    finding = install.check_extra("llamacpp", "llamacpp")
    assert finding.status == "fail" and finding.fix.startswith(distribution.command("llamacpp"))
    assert "extra prebuilt" in finding.fix


def test_the_wheel_does_in_place_of_the_extra_that_is_compiled(monkeypatch):
    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "llama_cpp" else True)
    assert install.check_extra("llamacpp", "llamacpp").status == "ok"
    assert "installed" in install.check_extra("prebuilt", "llamacpp").detail
    assert _choose_drafter(DoctorConfig(), "tiny").draft_model == "tiny-draft"


def test_a_draft_model_whose_library_is_missing_is_none_unless_it_was_asked_for(monkeypatch):
    assert _choose_drafter(DoctorConfig(), "tiny").draft_model
    monkeypatch.setattr(install, "find_spec", lambda name: None)
    assert _choose_drafter(DoctorConfig(), "tiny") == DoctorConfig(drafter="lookup", draft_model="")
    for asked in (DoctorConfig(drafter="llamacpp"), DoctorConfig(draft_model="tiny-draft")):
        assert _choose_drafter(asked, "tiny").draft_model == "tiny-draft"


def test_generated_code_that_cannot_be_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "edge_client.link.link", None)
    assert install.check_wire().status == "fail"


def test_a_folder_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(install, "version_of", lambda name: None)
    findings = {item.check: item for item in install.check_install(DoctorConfig())}
    assert findings["opensled"].status == "warn"


# -- machine ---------------------------------------------------------------------------------------------


def test_a_containers_share(tmp_path, monkeypatch):
    assert container_share(tmp_path) is None
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert container_share(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert container_share(tmp_path) is None
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("300000")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert container_share(tmp_path) == 3
    monkeypatch.setattr(machine, "container_share", lambda: 0.5)
    assert machine.check_cores().status == "warn"


def test_a_busy_machine():
    assert machine.check_load(1.9, 2).status == "ok"
    assert machine.check_load(7.0, 2).status == "warn"


@pytest.mark.parametrize(
    ("wanted", "cores", "fix"),
    [(0, 4, ""), (3, 4, ""), (1, 1, ""), (4, 4, "--threads 3"), (9, 4, "--threads 3")],
)
def test_the_thread_trap(wanted, cores, fix):
    assert machine.check_threads(wanted, cores).fix == fix


def test_the_size_of_a_draft_model():
    assert machine.model_bytes(DoctorConfig(drafter="onnx", draft_model="tiny-draft")) > 1000
    assert machine.model_bytes(DoctorConfig(draft_model="none such")) is None


@pytest.mark.parametrize(
    ("now", "synced", "status", "said"),
    [
        (2e9, True, "ok", "synchronised"),
        (2e9, None, "ok", "cannot be told"),
        (2e9, False, "warn", "not synchronised"),
        (1e9, True, "warn", "before this software was installed"),
    ],
)
def test_the_clock(now, synced, status, said):
    finding = machine.check_clock(now, 1.8e9, synced)
    assert finding.status == status and said in finding.detail


def test_the_kernel_is_asked_about_the_clock():
    assert machine.is_synchronised() in (True, False, None)


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    assert machine.check_cache(tmp_path / "file" / "cache").status == "warn"
    assert machine.check_cache(tmp_path / "new" / "cache").status == "ok"
    monkeypatch.setattr(machine, "SCARCE", 1 << 62)
    assert "make room" in machine.check_cache(tmp_path).fix


def test_statuses():
    assert (ok("a", "b").exit_code, warn("a", "b", "c").exit_code, fail("a", "b", "c").exit_code) == (0, 0, 1)
    assert fail("a", "b", "c", NotFound).exit_code == 3
