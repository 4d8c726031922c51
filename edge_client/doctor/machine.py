"""Checks the installation: which one runs, and whether what a device is made of can be loaded; then the machine: its
cores and the container's share of them, its load, and the cache; and the board with its present state."""

import importlib
import os
import platform
import sys
import tempfile
from pathlib import Path

import opensled
from edge_client.device.config import DoctorConfig
from edge_client.doctor.finding import Finding, fail, ok, warn
from hw_profiles.describe import now, processor
from hw_profiles.detect import Board, allowed_cpus, container_share, detect, usable_cores
from hw_profiles.pmic import pmic_power_w
from hw_profiles.sysfs import BoardState, read_board
from opensled.process import distribution

# They import all libraries of a device
NEEDED = ("edge_client.device.command", "http_api.app", "http_api.server")
REINSTALL = "pip install --upgrade --force-reinstall grpcio protobuf numpy tokenizers"
LOW_BATTERY = 20.0  # percent
HERE = "/"
UNDER_VOLTAGE = "under-voltage"
SUPPLY = "use the board's own power supply (5 V, 3 A; 5 A for a Pi 5) and a short, thick cable"
COOLING = "give it a heat sink or a fan, and air"


def check_install(findings: list[Finding]) -> bool:
    """Whether a device can be loaded here: with a broken library nothing else can be examined."""
    running = f"{opensled.__version__}, Python {platform.python_version()}, {sys.executable}"
    findings.append(ok(distribution.name(), running))
    try:
        for module in NEEDED:
            importlib.import_module(module)
    except Exception as error:  # a broken library can raise any exception
        fix = distribution.command() if isinstance(error, ModuleNotFoundError) else REINSTALL
        findings.append(fail("libraries", f"a device cannot be loaded: {error}", fix))
        return False
    findings.append(ok("libraries", "all that a device needs can be loaded"))
    return True


def check_machine(cache: Path) -> list[Finding]:
    """The findings on processor and cache."""
    return [check_cores(), check_load(current_load(), usable_cores()), check_cache(cache)]


def check_cores() -> Finding:
    """How many of the processors this process may use."""
    logical, usable = os.cpu_count() or 1, usable_cores()
    allowed = len(allowed_cpus())
    parts = [f"{logical} logical processors"]
    if allowed < logical:
        parts.append(f"{allowed} allowed to this process")
    quota = container_share()
    if quota is not None:
        parts.append(f"a container limit of {quota:g}")
    detail = f"{', '.join(parts)}; {usable} physical cores to draft with"
    if quota is not None and quota < 1:
        return warn("processor", detail, "give the container one whole CPU at least: docker run --cpus 1")
    return ok("processor", detail)


def current_load() -> float:
    """Runnable processes, averaged over a minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def is_busy(load: float, cores: int) -> bool:
    """Whether other work slows a drafter down. `load`: runnable processes."""
    return load > cores + 0.5


def check_load(load: float, cores: int) -> Finding:
    """`load`: runnable processes, averaged over a minute."""
    detail = f"load {load:.1f} on {cores} cores"
    if is_busy(load, cores):
        return warn("load", f"{detail}: other work slows drafting down", "see what runs: top -o %CPU")
    return ok("load", detail)


def check_cache(folder: Path) -> Finding:
    """Whether the cache can be written; without it tokenizers (some megabytes) are fetched at every start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ok("cache", str(folder))
    except OSError as error:
        fix = f"mkdir -p {folder} && chmod u+rwx {folder}"
        return warn("cache", f"{folder} cannot be written: {error.strerror}", fix)


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
