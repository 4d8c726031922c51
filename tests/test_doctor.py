"""`opensled doctor` as a whole, and its findings on this device: each one provoked."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import machine
from edge_client.doctor.doctor import _Report
from edge_client.doctor.edge_section import with_edge_section
from edge_client.doctor.finding import LONGEST, fail, ok, plain, report_error, warn
from edge_client.doctor.machine import check_board, check_state, describe_board
from hw_profiles.detect import Board, container_share
from hw_profiles.sysfs import BoardState
from opensled.cli.main import main
from opensled.core.errors import NotFound, Unreachable, UsageError
from opensled.process import distribution
from tests.commands import opensled
from tests.golden_boards import BOARDS, plant
from tests.terminal import Screen

NOBODY = "127.0.0.1:1"
ROOT = Path(__file__).resolve().parents[1]


def run(*arguments):
    return opensled("doctor", *arguments, variables={"OPENSLED_NO_CONFIG": "1"}, cwd=ROOT)


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
    assert "\x1b" not in done.stdout and "fix: start one: opensled serve" in done.stdout


@pytest.mark.parametrize("missing", ["numpy", "grpc", "google.protobuf", "uvicorn"])
def test_a_broken_library_is_a_finding_and_no_crash(missing):
    script = (
        f"import sys; sys.modules[{missing!r}] = None; from opensled.cli.main import main;"
        f"sys.exit(main(['doctor', '--server', '{NOBODY}', '--drafter', 'none', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    findings = by_check(done)
    assert findings["libraries"]["status"] == "fail" and missing in findings["libraries"]["detail"]
    assert findings["libraries"]["fix"] == distribution.command() and "processor" in findings
    assert done.returncode == 1 and "connection" not in findings


def test_generated_code_that_is_newer_than_its_library(monkeypatch):
    def refuse(name):
        raise RuntimeError("gencode 9 runtime 7")

    monkeypatch.setattr(machine.importlib, "import_module", refuse)
    assert not machine.check_install(found := [])
    assert found[-1].fix == machine.REINSTALL and "gencode 9" in found[-1].detail


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


def test_a_check_that_raises_is_a_finding_and_no_cause_is_told_twice(capsys):
    report = _Report(DoctorConfig())
    for heading in ("one", "two"):
        with report.group(heading) as found:
            found.append(ok("name", "fine"))
            raise ValueError("odd\x1b[2J")
    assert [each.status for each in report.findings] == ["ok", "fail", "ok"] and report.end() == 1
    assert report.findings[1].detail == "ValueError: odd\\x1b[2J"
    assert capsys.readouterr().out.count("ValueError") == 1


def test_an_error_of_ours_names_its_next_step():
    told = report_error("server", Unreachable("nobody; run: ask\x1b"), "look")
    assert (told.detail, told.fix, told.exit_code) == ("nobody", "ask\\x1b", 5)
    assert report_error("server", Unreachable("nobody"), "look").fix == "look"


def test_details_are_one_short_printable_line():
    assert plain("a\nb\udc80\x07" + "x" * 1000).startswith("a b\\udc80\\x07xxx")
    assert len(plain("x" * 1000)) == LONGEST


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


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    assert machine.check_cache(tmp_path / "file" / "cache").status == "warn"
    assert machine.check_cache(tmp_path / "new" / "cache").status == "ok"


def test_statuses():
    assert (ok("a", "b").exit_code, warn("a", "b", "c").exit_code, fail("a", "b", "c").exit_code) == (0, 0, 1)
    assert fail("a", "b", "c", NotFound).exit_code == 3


# -- the board ----------------------------------------------------------------------------------------------------


def examined(name, tmp_path):
    """Findings on one of the sample boards."""
    return {item.check: item for item in check_board(DoctorConfig(root=str(plant(name, tmp_path))))}


def test_a_pi_4_needs_cooling(tmp_path):
    found = examined("pi-4", tmp_path)
    assert found["board"].detail.startswith("Raspberry Pi 4 Model B Rev 1.4, 4 x Cortex-A72 (neither dotprod")
    assert found["board"].detail.endswith("profile pi-4")
    assert found["heat and power"].status == "warn" and "heat sink or a fan" in found["heat and power"].fix


@pytest.mark.parametrize("name", ["pi-5", "orin-nano", "agx-orin"])
def test_the_others_are_well(name, tmp_path):
    assert {item.status for item in examined(name, tmp_path).values()} == {"ok"}


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        (BoardState(throttled=True, reasons=("under-voltage",)), machine.SUPPLY),
        (BoardState(throttled=False, past_reasons=("throttled", "under-voltage")), machine.SUPPLY),
        (BoardState(throttled=True, reasons=("throttled",)), machine.COOLING),
        (BoardState(throttled=False, past_reasons=("throttled",)), ""),
        (BoardState(battery_percent=12, discharging=True), "plug the charger in: drafting costs power"),
        (BoardState(battery_percent=12, discharging=False), ""),
    ],
)
def test_what_to_do_about_it(state, fix):
    (finding,) = check_state(state, None)
    assert finding.fix == fix and finding.status == ("warn" if fix else "ok")


def test_a_board_that_tells_nothing_of_itself():
    assert check_state(BoardState(), None) == []
    assert describe_board(Board("a PC", "", "", "x86", 2, ("avx2",), 4.0)) == (
        "a PC, 2 x x86 (avx2), 4 GiB, no packaged profile"
    )


def test_power_that_only_the_firmware_knows(monkeypatch):
    monkeypatch.setattr(machine, "pmic_power_w", lambda: 6.5)
    assert machine.power("/", BoardState()) == 6.5
    assert machine.power("/a/copy", BoardState()) is None
    assert machine.power("/", BoardState(power_w=9.0)) == 9.0
    (finding,) = check_state(BoardState(temperature_c=50.0), 6.5)
    assert finding.detail == "50 °C, 6.5 W over the PMIC's rails"


# -- the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BOARDS)
def test_a_copy_of_a_boards_files_tells_of_that_board_alone(name, tmp_path, capsys):
    assert main(["doctor", "--root", str(plant(name, tmp_path)), "--json"]) == 0
    checks = [item["check"] for item in json.loads(capsys.readouterr().out)["findings"]]
    assert checks == ["board", "heat and power"]


def test_a_folder_without_a_board(capsys):
    assert main(["doctor", "--root", "/nowhere"]) == 3
    assert "no proc folder" in capsys.readouterr().err
