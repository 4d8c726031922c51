"""`opensled doctor` and the board: this one, and four others by copies of their files."""

import json

import pytest

from edge_client.device.config import DoctorConfig
from edge_client.doctor import board
from edge_client.doctor.board import check_board, check_state, describe_board
from hw_profiles.detect import Board
from hw_profiles.sysfs import BoardState
from opensled.cli.main import main
from tests.golden_boards import BOARDS, plant


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
    found = examined(name, tmp_path)
    assert {item.status for item in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("state", "fix"),
    [
        (BoardState(throttled=True, reasons=("under-voltage",)), board.SUPPLY),
        (BoardState(throttled=False, past_reasons=("throttled", "under-voltage")), board.SUPPLY),
        (BoardState(throttled=True, reasons=("throttled",)), board.COOLING),
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
    monkeypatch.setattr(board, "pmic_power_w", lambda: 6.5)
    assert board.power("/", BoardState()) == 6.5
    assert board.power("/a/copy", BoardState()) is None
    assert board.power("/", BoardState(power_w=9.0)) == 9.0
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
