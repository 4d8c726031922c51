"""Which board this is: sample trees of four boards, PCs, and what nobody has heard of."""

import json

import pytest

from hw_profiles.catalog import names
from hw_profiles.detect import PROFILES, Board, detect
from opensled.cli.main import main
from tests.golden_boards import BOARDS, plant

A78 = ("dotprod",)
EXPECTED = {
    "pi-4": Board(
        "Raspberry Pi 4 Model B Rev 1.4", "pi-4", "Debian GNU/Linux 12 (bookworm)", "Cortex-A72", 4, (), 7.6
    ),
    "pi-5": Board(
        "Raspberry Pi 5 Model B Rev 1.0", "pi-5", "Debian GNU/Linux 12 (bookworm)", "Cortex-A76", 4, A78, 7.9
    ),
    "orin-nano": Board(
        "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        *("orin-nano-super", "Jetson Linux 36.4.7", "Cortex-A78AE", 6, A78, 7.4, "25W"),
    ),
    "agx-orin": Board(
        "NVIDIA Jetson AGX Orin Developer Kit",
        *("agx-orin", "Jetson Linux 36.4.4", "Cortex-A78AE", 12, A78, 61.3, "MODE_30W"),
    ),
}
PC = """processor	: {}
model name	: AMD Ryzen 7 5800U with Radeon Graphics
physical id	: 0
core id	: {}
flags	: fpu sse2 avx2 fma
"""


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize("name", sorted({*BOARDS, *EXPECTED}))
def test_boards(name, tmp_path):
    assert detect(plant(name, tmp_path)) == EXPECTED[name]


def test_every_profile_that_can_be_detected_is_packaged():
    assert {profile for _, profile in PROFILES} <= set(names("devices"))


@pytest.mark.parametrize(
    ("compatible", "profile"),
    [
        ("nvidia,p3768-0000+p3767-0005\0nvidia,p3767-0005\0nvidia,tegra234\0", "orin-nano"),
        ("vendor,carrier+p3767-0001\0nvidia,p3767-0001\0nvidia,tegra234\0", "orin-nx"),
        ("seeed,recomputer\0nvidia,p3701-0004\0nvidia,tegra234\0", "agx-orin"),
        ("raspberrypi,400\0brcm,bcm2711\0", "pi-4"),
        ("raspberrypi,5-compute-module\0brcm,bcm2712\0", "pi-5"),
        ("nvidia,p2972-0000\0nvidia,tegra194\0", ""),
        ("rockchip,rk3588\0", ""),
    ],
)
def test_the_module_counts_and_not_the_carrier_board(compatible, profile, tmp_path):
    put(tmp_path, "proc/device-tree/compatible", compatible)
    assert detect(tmp_path).profile == profile


def test_a_pc_is_named_by_its_maker(tmp_path):
    put(tmp_path, "proc/cpuinfo", "\n".join(PC.format(cpu, cpu // 2) for cpu in range(16)))
    put(tmp_path, "sys/class/dmi/id/sys_vendor", "LENOVO\n")
    put(tmp_path, "sys/class/dmi/id/product_name", "20XWCTO1WW\n")
    board = detect(tmp_path)
    assert (board.name, board.profile, board.cores) == ("LENOVO 20XWCTO1WW", "", 8)
    assert board.features == ("avx2",) and board.processor.startswith("AMD Ryzen 7")
    put(tmp_path, "sys/class/dmi/id/sys_vendor", "To Be Filled By O.E.M.\n")
    put(tmp_path, "sys/class/dmi/id/product_name", "System Product Name\n")
    assert detect(tmp_path).name == "AMD Ryzen 7 5800U with Radeon Graphics"


def test_cores_of_two_kinds(tmp_path):
    core = "processor\t: {}\nFeatures\t: fp asimd asimddp{}\nCPU part\t: {}\n"
    slow, fast = [core.format(0, "", "0xd05")] * 4, [core.format(4, " i8mm", "0xd41")] * 4
    put(tmp_path, "proc/cpuinfo", "\n".join([*slow, *fast]))
    board = detect(tmp_path)
    assert board.processor == "Cortex-A78 + Cortex-A55" and board.cores == 8
    assert board.features == ("dotprod",)  # i8mm is not everywhere


def test_a_power_mode_that_its_file_does_not_name(tmp_path):
    put(tmp_path, "var/lib/nvpmodel/status", "pmode:0005 fmode:quiet\n")
    assert detect(tmp_path).power_mode == "mode 5"


def test_nothing_at_all(tmp_path):
    assert detect(tmp_path) == Board("unknown processor", "", "", "unknown processor", 1, (), 0)


def test_this_machine():
    board = detect()
    assert board.cores >= 1 and board.memory_gib > 0 and board.name


# -- the command -----------------------------------------------------------------------------------------


def test_people_see_the_board_and_how_it_fares(tmp_path, capsys):
    assert main(["profile", "detect", "--root", str(plant("pi-4", tmp_path))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "board       Raspberry Pi 4 Model B Rev 1.4"
    assert lines[-1].startswith("now         82 °C, 1500 of 1800 MHz, slowed down (soft temperature limit)")


def test_programs_get_json(tmp_path, capsys):
    assert main(["profile", "detect", "--json", "--root", str(plant("orin-nano", tmp_path))]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["profile"], told["power_mode"]) == ("orin-nano-super", "25W")
    assert told["state"]["power_w"] == pytest.approx(14.596, abs=0.001)


def test_a_folder_without_a_board(tmp_path, capsys):
    assert main(["profile", "detect", "--root", str(tmp_path)]) == 3
    assert "holds no proc folder" in capsys.readouterr().err
