"""Metrics of the board a device runs on. One that this board does not tell has no sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hw_profiles.pmic import pmic_power_w
from hw_profiles.sysfs import BoardState, read_board
from opensled.metrics import Metric, Reading

Look = Callable[[], BoardState]

# name, what it is, how it reads from a state
FIGURES: tuple[tuple[str, str, Callable[[BoardState], float | None]], ...] = (
    ("board_throttled", "1 while the board slows itself down.", lambda state: state.throttled),
    (
        "board_throttled_since_boot",
        "1 if it has slowed itself down since it was started.",
        lambda state: state.throttled_since_boot,
    ),
    ("board_cpu_hertz", "Clock of the fastest core now.", lambda state: _times(1e6, state.cpu_mhz)),
    ("board_cpu_max_hertz", "What the processor could do.", lambda state: _times(1e6, state.cpu_max_mhz)),
    ("board_battery_ratio", "Charge, from 0 to 1.", lambda state: _times(0.01, state.battery_percent)),
    ("board_discharging", "1 while it runs on its battery.", lambda state: _on_battery(state)),
)


def board_metrics(look: Look = read_board, pmic: Callable[[], float | None] = pmic_power_w) -> list[Metric]:
    """Read when somebody scrapes; the board is looked at every two seconds at most."""
    return [
        Metric(
            "board_temperature_celsius",
            "Temperature by thermal zone.",
            lambda: look().zones_c,
            label="zone",
        ),
        Metric("board_power_watts", "Power that the board draws.", lambda: _power(look(), pmic)),
        *(Metric(name, told, partial(_figure, look, of)) for name, told, of in FIGURES),
    ]


def _figure(look: Look, of: Callable[[BoardState], float | None]) -> Reading:
    value = of(look())
    return {} if value is None else float(value)


def _power(state: BoardState, pmic: Callable[[], float | None]) -> Reading:
    watts = pmic() if state.power_w is None else state.power_w
    return {} if watts is None else watts


def _on_battery(state: BoardState) -> float | None:
    return None if state.battery_percent is None else state.discharging


def _times(unit: float, value: float | None) -> float | None:
    return None if value is None else unit * value
