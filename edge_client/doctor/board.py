"""The board and its present state."""

from edge_client.device.config import DoctorConfig
from edge_client.doctor.finding import Finding, ok, warn
from hw_profiles.describe import now, processor
from hw_profiles.detect import Board, detect
from hw_profiles.pmic import pmic_power_w
from hw_profiles.sysfs import BoardState, read_board

LOW_BATTERY = 20.0  # percent
HERE = "/"
UNDER_VOLTAGE = "under-voltage"
SUPPLY = "use the board's own power supply (5 V, 3 A; 5 A for a Pi 5) and a short, thick cable"
COOLING = "give it a heat sink or a fan, and air"


def check_board(config: DoctorConfig) -> list[Finding]:
    """The findings on the board whose files are below `config.root`."""
    board, state = detect(config.root), read_board(config.root)
    return [ok("board", describe_board(board)), *check_state(state, power(config.root, state))]


def describe_board(board: Board) -> str:
    """One line; predictions start from the profile where nothing is measured."""
    parts = [board.name, processor(board), f"{board.memory_gib:g} GiB", board.system]
    mode = f"power mode {board.power_mode}" if board.power_mode else ""
    profile = f"profile {board.profile}" if board.profile else "no packaged profile"
    return ", ".join(part for part in (*parts, mode, profile) if part)


def power(root: str, state: BoardState) -> float | None:
    """Watts; a Pi 5 tells them only through its firmware, on the board itself."""
    return pmic_power_w() if state.power_w is None and root == HERE else state.power_w


def check_state(state: BoardState, power_w: float | None) -> list[Finding]:
    """Heat, power and battery; no finding if the machine does not report them."""
    told = now(state)
    if state.power_w is None and power_w is not None:
        told = ", ".join(part for part in (told, f"{power_w:.1f} W over the PMIC's rails") if part)
    if not told:
        return []
    reasons = state.reasons or tuple(set(state.past_reasons) & {UNDER_VOLTAGE})
    if reasons:
        return [warn("heat and power", told, SUPPLY if UNDER_VOLTAGE in reasons else COOLING)]
    percent = state.battery_percent
    if percent is not None and state.discharging and percent < LOW_BATTERY:
        return [warn("heat and power", told, "plug the charger in: drafting costs power")]
    return [ok("heat and power", told)]
