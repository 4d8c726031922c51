"""A board's figures as Prometheus gets them."""

import pytest

from edge_client.device.device_metrics import board_metrics
from hw_profiles.sysfs import BoardState, Sensors
from tests.golden_boards import plant
from tests.scraping import samples, scrape


def told(look, pmic=lambda: None):
    found = samples(scrape(board_metrics(look, pmic)))
    return {
        key if isinstance(key, str) else key[0]: value for key, value in found.items() if "board" in str(key)
    }


def test_a_hot_pi_4(tmp_path):
    found = told(Sensors(plant("pi-4", tmp_path)).look)
    assert found == {
        "board_temperature_celsius": 82.29,
        "board_throttled": 1,
        "board_throttled_since_boot": 1,
        "board_cpu_hertz": 1.5e9,
        "board_cpu_max_hertz": 1.8e9,
    }


def test_power_comes_from_rails_and_else_from_the_pmic(tmp_path):
    nano, pi = (Sensors(plant(name, tmp_path / name)).look for name in ("orin-nano", "pi-5"))
    assert told(nano, lambda: 99.0)["board_power_watts"] == pytest.approx(14.596, abs=0.001)
    assert told(pi, lambda: 5.33)["board_power_watts"] == 5.33
    assert "board_power_watts" not in told(pi)


def test_a_battery():
    found = told(lambda: BoardState(battery_percent=40.0, discharging=True))
    assert (found["board_battery_ratio"], found["board_discharging"]) == (pytest.approx(0.4), 1)


def test_a_machine_that_tells_nothing_has_no_samples():
    assert told(BoardState) == {}
