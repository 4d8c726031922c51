"""The present state of a board: heat, throttling, power, clock and battery, from the kernel's sysfs.

Nothing is executed and no special rights are needed. Every reader takes the root folder, so that copies of the files of
other boards can be read as well. A look costs a few dozen small reads; `read_board` keeps one for two seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

MAX_AGE = 2.0  # seconds that a look stays good

# Bits of the Raspberry Pi firmware's get_throttled: what holds now; 16 bits higher what has happened since boot.
PI_REASONS = {0: "under-voltage", 1: "frequency capped", 2: "throttled", 3: "soft temperature limit"}
SINCE_BOOT = 16
# Cooling devices that cool by slowing the processor or the GPU down; a fan is none of them.
SLOWING = ("cpufreq", "thermal-cpufreq", "devfreq", "thermal-devfreq", "processor", "intel_powerclamp")
ALERT = "throttle-alert"  # on a Jetson: cpu-throttle-alert, gpu-throttle-alert and so on
# Rails of an INA3221: one that feeds the whole module, or those that do so together (Jetson AGX Orin).
WHOLE_RAILS = ("VDD_IN", "POM_5V_IN", "VIN")
PART_RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")


@dataclass(frozen=True)
class BoardState:
    """One reading of a board. None: not known here."""

    temperature_c: float | None = None  # of the hottest zone
    zones_c: Mapping[str, float] = field(default_factory=dict)  # temperature by zone
    throttled: bool | None = None  # slowed down right now, whatever the reason
    reasons: tuple[str, ...] = ()  # why, as the board names it
    throttled_since_boot: bool | None = None
    past_reasons: tuple[str, ...] = ()
    power_w: float | None = None  # of the board, or of a laptop as its battery gives it
    cpu_mhz: float | None = None  # the fastest core's clock now
    cpu_max_mhz: float | None = None  # what the processor could do, whatever caps it at the moment
    battery_percent: float | None = None  # None: no battery
    discharging: bool = False  # running on the battery


def read_board(root: Path | str = "/", max_age: float = MAX_AGE) -> BoardState:
    """The state of the board whose files lie below `root`, at most `max_age` seconds old. Never raises."""
    return _sensors(str(root)).look(max_age)


@lru_cache(maxsize=16)
def _sensors(root: str) -> Sensors:
    return Sensors(Path(root))


class Sensors:
    """The sensors of one board: found once, read as often as asked."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._state, self._read_at = BoardState(), float("-inf")
        thermal, cpu = root / "sys/class/thermal", root / "sys/devices/system/cpu"
        self._zones = _name_zones(_children(thermal, "thermal_zone"))
        self._cooling = [path / "cur_state" for path in _children(thermal, "cooling_device") if _slows(path)]
        self._firmware = _firmware(root / "sys/devices/platform")
        self._counters = sorted((cpu / "cpu0/thermal_throttle").glob("*_throttle_count"))
        self._policies = _children(cpu / "cpufreq", "policy")
        self._alarms = [path / "in0_lcrit_alarm" for path in _hwmons(root, "rpi_volt")]
        self._rails = _rails(_hwmons(root, "ina3221"))
        self._battery = _battery(root / "sys/class/power_supply")

    def look(self, max_age: float = 0.0) -> BoardState:
        """Read everything, unless what was read less than `max_age` seconds ago will do."""
        now = self._clock()
        if now - self._read_at >= max_age:
            self._state, self._read_at = self._read(), now
        return self._state

    def _read(self) -> BoardState:
        zones = dict(self._temperatures())
        state = BoardState(
            temperature_c=max(zones.values(), default=None),
            zones_c=zones,
            cpu_mhz=self._clock_mhz("scaling_cur_freq"),
            cpu_max_mhz=self._clock_mhz("cpuinfo_max_freq"),
            power_w=self._rail_power(),
        )
        return self._with_battery(self._with_throttling(state))

    def _temperatures(self) -> Iterable[tuple[str, float]]:
        """Zones without a sensor answer with an error, or with a temperature that no running board has."""
        for name, path in self._zones.items():
            celsius = _number(path / "temp", 1000)
            if celsius is not None and -40 <= celsius <= 150:
                yield name, celsius

    def _with_throttling(self, state: BoardState) -> BoardState:
        """From the Pi's firmware where it tells; else from the cooling devices and the processor's own counters."""
        bits = _hex(self._firmware) if self._firmware else None
        if bits is not None:
            now, past = pi_reasons(bits), pi_reasons(bits >> SINCE_BOOT)
            return replace(
                state, throttled=bool(now), reasons=now, throttled_since_boot=bool(past), past_reasons=past
            )
        now = tuple(dict.fromkeys(read_text(path.parent / "type") for path in self._cooling if _on(path)))
        if any(_on(path) for path in self._alarms):
            now = (PI_REASONS[0], *now)
        throttled = bool(now) if self._cooling or self._alarms else None
        counts = [_on(path) for path in self._counters]
        past = ("processor too hot",) if any(counts) else ()
        since_boot = bool(past or now) if counts else (throttled or None)
        return replace(
            state, throttled=throttled, reasons=now, throttled_since_boot=since_boot, past_reasons=past
        )

    def _clock_mhz(self, name: str) -> float | None:
        clocks = [_number(path / name, 1000) for path in self._policies]
        return max((mhz for mhz in clocks if mhz is not None), default=None)

    def _rail_power(self) -> float | None:
        """Watts over the rails: volts (of millivolts) times amperes (of milliamperes)."""
        watts = [_product(*rail, 1e6) for rail in self._rails]
        known = [each for each in watts if each is not None]
        return sum(known) if known and len(known) == len(watts) else None

    def _with_battery(self, state: BoardState) -> BoardState:
        if self._battery is None:
            return state
        discharging = read_text(self._battery / "status").lower() == "discharging"
        power = state.power_w
        if power is None and discharging:
            power = _battery_power(self._battery)
        percent = _number(self._battery / "capacity")
        return replace(state, battery_percent=percent, discharging=discharging, power_w=power)


def pi_reasons(bits: int) -> tuple[str, ...]:
    """What the four lowest bits of get_throttled say."""
    return tuple(reason for bit, reason in PI_REASONS.items() if bits >> bit & 1)


def _firmware(platform: Path) -> Path | None:
    """get_throttled lies in the firmware's node below the chip's: soc:firmware, soc@107c000000:firmware."""
    found = sorted(platform.glob("soc*/soc*:firmware/get_throttled"))
    return found[0] if found else None


def _slows(cooling: Path) -> bool:
    kind = read_text(cooling / "type").lower()
    return kind.startswith(SLOWING) or kind.endswith(ALERT)


def _name_zones(zones: list[Path]) -> dict[str, Path]:
    """Zones by their type; of several with one type (a PC's "acpitz") the others carry their number, too."""
    named: dict[str, Path] = {}
    for path in zones:
        kind = read_text(path / "type") or path.name
        named[kind if kind not in named else f"{kind} {path.name.removeprefix('thermal_zone')}"] = path
    return named


def _hwmons(root: Path, name: str) -> list[Path]:
    """Folders of the sensors called `name`: where hwmon lists them, else where their I2C driver does."""
    listed = _children(root / "sys/class/hwmon", "hwmon")
    found = [path for path in listed if read_text(path / "name") == name]
    return found or sorted((root / "sys/bus/i2c/drivers" / name).glob("*/hwmon/hwmon*"))


def _rails(monitors: list[Path]) -> list[tuple[Path, Path]]:
    """(voltage, current) files whose products add up to the board's power; none where that is not known."""
    rails = {
        read_text(label): (path / f"in{number}_input", path / f"curr{number}_input")
        for path in monitors
        for label in sorted(path.glob("in[1-3]_label"))
        for number in (label.name[2],)
    }
    for name in WHOLE_RAILS:
        if name in rails:
            return [rails[name]]
    return [rails[name] for name in PART_RAILS] if all(name in rails for name in PART_RAILS) else []


def _battery(supplies: Path) -> Path | None:
    """The battery that runs this machine; a mouse's says that its scope is a device."""
    for path in _children(supplies):
        if read_text(path / "type") == "Battery" and read_text(path / "scope") != "Device":
            return path
    return None


def _battery_power(battery: Path) -> float | None:
    """Watts; some batteries tell their power in microwatts, others current and voltage in micro-units."""
    power = _number(battery / "power_now", 1e6)
    return power if power is not None else _product(battery / "current_now", battery / "voltage_now", 1e12)


def _product(one: Path, other: Path, unit: float) -> float | None:
    factors = _number(one), _number(other)
    return None if factors[0] is None or factors[1] is None else factors[0] * factors[1] / unit


def _children(folder: Path, prefix: str = "") -> list[Path]:
    """Sub-folders by name, those with numbers in their order."""
    try:
        names = [path for path in folder.iterdir() if path.name.startswith(prefix)]
    except OSError:
        return []
    return sorted(names, key=lambda path: (len(path.name), path.name))


def _on(path: Path) -> bool:
    return (_number(path) or 0) > 0


def _number(path: Path, unit: float = 1) -> float | None:
    try:
        return float(read_text(path)) / unit
    except ValueError:
        return None


def _hex(path: Path) -> int | None:
    try:
        return int(read_text(path), 16)
    except ValueError:
        return None


def read_text(path: Path) -> str:
    """What the file says, "" if it cannot be read: an absent sensor answers with an error of any kind."""
    try:
        return path.read_bytes().decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        return ""
