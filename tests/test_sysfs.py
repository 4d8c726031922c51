"""How a board fares, read from sample trees of real boards and from broken ones."""

import struct

import pytest

from hw_profiles import pmic
from hw_profiles.sysfs import BoardState, Sensors, pi_reasons, read_board
from tests.golden_boards import BOARDS, plant
from tests.pace import units

# Lines of `vcgencmd pmic_read_adc` of a Pi 5; the last three tell one of the two only
RAILS = """ 3V7_WL_SW_A current(0)=0.10000000A
   3V3_SYS_A current(1)=0.20000000A
  VDD_CORE_A current(7)=5.00000000A
 3V7_WL_SW_V volt(8)=3.70000000V
   3V3_SYS_V volt(9)=3.30000000V
  VDD_CORE_V volt(15)=0.86000000V
 NO_VOLTS_A current(9)=0.50000000A
     EXT5V_V volt(24)=5.09066000V
      BATT_V volt(25)=0.00000000V
"""


@pytest.fixture
def board(tmp_path):
    return lambda name: Sensors(plant(name, tmp_path / name)).look()


def write(root, **files):
    for path, text in files.items():
        file = root / "sys" / path.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_a_pi_4_that_is_too_hot(board):
    state = board("pi-4")
    assert (state.temperature_c, state.cpu_mhz, state.cpu_max_mhz) == (82.29, 1500, 1800)
    assert state.throttled and state.reasons == ("soft temperature limit",)
    assert state.throttled_since_boot
    assert state.past_reasons == ("frequency capped", "throttled", "soft temperature limit")
    assert state.power_w is None and state.battery_percent is None and not state.discharging


def test_a_pi_5_that_is_well(board):
    state = board("pi-5")
    assert (state.throttled, state.throttled_since_boot, state.reasons) == (False, False, ())
    assert state.temperature_c == 58.45


def test_an_orin_nano(board):
    state = board("orin-nano")
    assert state.power_w == pytest.approx(5.040 * 2.896)  # VDD_IN alone: it feeds the other two
    assert state.throttled is False  # the fan runs, and hot-surface-alert slows nothing down
    assert state.throttled_since_boot is None  # nobody counts it
    assert state.zones_c["gpu-thermal"] == 72.218 and "cv0-thermal" not in state.zones_c
    assert state.temperature_c == 72.218


def test_an_agx_orin(tmp_path):
    root = plant("agx-orin", tmp_path)
    rails = 19.944 * 0.257 + 19.944 * 0.164 + 4.976 * 1.105
    assert Sensors(root).look().power_w == pytest.approx(rails)
    write(root, class__hwmon__hwmon3__curr2_input="")
    assert Sensors(root).look().power_w is None, "rails that are not all known add up to nothing"


def test_a_jetson_that_throttles(tmp_path):
    root = plant("orin-nano", tmp_path)
    write(root, class__thermal__cooling_device1__cur_state="5")
    write(root, class__thermal__cooling_device4__cur_state="1")
    state = Sensors(root).look()
    assert state.throttled and state.reasons == ("cpufreq-cpu0", "cpu-throttle-alert")


def test_a_jetson_whose_sensors_only_the_i2c_driver_lists(tmp_path):
    root = plant("orin-nano", tmp_path)
    (root / "sys/class/hwmon/hwmon1/name").unlink()
    assert Sensors(root).look().power_w == pytest.approx(5.040 * 2.896)


def test_a_laptop_on_its_battery(tmp_path):
    write(
        tmp_path,
        class__power_supply__ACAD__type="Mains",
        class__power_supply__BAT0__type="Battery",
        class__power_supply__BAT0__status="Discharging",
        class__power_supply__BAT0__capacity="17",
        class__power_supply__BAT0__power_now="8250000",
        class__power_supply__AAA0__type="Battery",
        class__power_supply__AAA0__scope="Device",
        class__thermal__cooling_device0__type="Processor",
        class__thermal__cooling_device0__cur_state="0",
        devices__system__cpu__cpu0__thermal_throttle__package_throttle_count="12",
    )
    state = Sensors(tmp_path).look()
    assert (state.battery_percent, state.discharging, state.power_w) == (17, True, 8.25)
    assert (state.throttled, state.throttled_since_boot) == (False, True)
    write(tmp_path, class__power_supply__BAT0__status="Charging")
    state = Sensors(tmp_path).look()
    assert (state.battery_percent, state.discharging, state.power_w) == (17, False, None)


def test_a_battery_that_tells_current_and_voltage(tmp_path):
    battery = {"type": "Battery", "status": "Discharging", "current_now": 1500000, "voltage_now": 12000000}
    write(tmp_path, **{f"class__power_supply__BAT1__{name}": text for name, text in battery.items()})
    assert Sensors(tmp_path).look().power_w == 18


def test_an_under_voltage_alarm_without_the_firmwares_bits(tmp_path):
    root = plant("pi-5", tmp_path)
    (root / "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled").unlink()
    assert Sensors(root).look().throttled is False
    write(root, class__hwmon__hwmon3__in0_lcrit_alarm="1")
    state = Sensors(root).look()
    assert state.throttled and state.reasons == ("under-voltage",)


@pytest.mark.parametrize(
    ("bits", "said"),
    [(0, ()), (0x1, ("under-voltage",)), (0x50005, ("under-voltage", "throttled")), (0xF0000, ())],
)
def test_the_firmwares_bits(bits, said):
    assert pi_reasons(bits) == said


def test_a_machine_that_tells_nothing(tmp_path):
    assert Sensors(tmp_path).look() == BoardState()
    assert read_board(tmp_path / "nowhere") == BoardState()


def test_nonsense_in_every_file_is_no_number(tmp_path):
    for name in BOARDS:
        root = plant(name, tmp_path / name)
        for path in (root / "sys").rglob("*"):
            if path.is_file() and path.name not in ("type", "name", "in1_label", "in2_label", "in3_label"):
                path.write_bytes(b"\xff\x00??")
        state = Sensors(root).look()
        assert (state.temperature_c, state.power_w, state.cpu_mhz) == (None, None, None)


def test_a_zone_of_a_sensor_that_is_not_there(tmp_path):
    write(
        tmp_path, class__thermal__thermal_zone0__type="acpitz", class__thermal__thermal_zone0__temp="-273200"
    )
    write(tmp_path, class__thermal__thermal_zone1__type="acpitz", class__thermal__thermal_zone1__temp="41000")
    assert Sensors(tmp_path).look().zones_c == {"acpitz 1": 41}


def test_a_look_is_kept_for_two_seconds(tmp_path):
    root, now = plant("pi-4", tmp_path), [100.0]
    sensors = Sensors(root, lambda: now[0])
    assert sensors.look(2.0).temperature_c == 82.29
    write(root, class__thermal__thermal_zone0__temp="60000")
    now[0] = 101.9
    assert sensors.look(2.0).temperature_c == 82.29
    assert sensors.look().temperature_c == 60
    write(root, class__thermal__thermal_zone0__temp="50000")
    assert sensors.look(2.0).temperature_c == 60
    now[0] = 104.0
    assert sensors.look(2.0).temperature_c == 50


@pytest.mark.timed
def test_a_look_is_cheap(tmp_path):
    sensors = Sensors(plant("agx-orin", tmp_path))  # the one with the most files
    assert units(sensors.look, 50) < 8


# -- the Pi 5's PMIC -------------------------------------------------------------------------------------


def test_power_is_the_sum_of_rails_that_tell_both():
    assert pmic.rail_power(RAILS) == pytest.approx(0.37 + 0.66 + 4.3)
    assert pmic.rail_power('error=1 error_msg="Command not registered"') is None
    assert pmic.rail_power("") is None


def test_the_message_to_the_firmware():
    seen = []

    def firmware(message):
        seen.append(bytes(message))
        message[24 : 24 + len(RAILS)] = RAILS.encode()

    assert pmic.ask(firmware) == RAILS
    (sent,) = seen
    assert len(sent) == 263 * 4 and struct.unpack_from("<5I", sent) == (1052, 0, 0x00030080, 1024, 0)
    assert sent[24:38] == b"pmic_read_adc\0" and sent[-4:] == bytes(4)


def test_a_firmware_that_knows_no_such_command():
    with pytest.raises(ValueError, match="error 1"):
        pmic.ask(lambda message: struct.pack_into("<I", message, 20, 1))


def test_no_other_machine_has_such_a_pmic(tmp_path, monkeypatch):
    monkeypatch.setattr(pmic, "MAILBOX", str(tmp_path / "vcio"))
    assert pmic.pmic_power_w() is None
    (tmp_path / "vcio").write_text("")  # a file that is no device
    assert pmic.pmic_power_w() is None
