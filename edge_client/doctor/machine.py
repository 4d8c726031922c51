"""Checks the installation: which one runs, and whether what a device is made of can be loaded; then the machine: its
cores and the container's share of them, its load, and the cache."""

import importlib
import os
import platform
import sys
import tempfile
from pathlib import Path

import opensled
from edge_client.doctor.finding import Finding, fail, ok, warn
from hw_profiles.detect import allowed_cpus, container_share, usable_cores
from opensled.process import distribution

# They import all libraries of a device
NEEDED = ("edge_client.device.command", "http_api.app", "http_api.server")
REINSTALL = "pip install --upgrade --force-reinstall grpcio protobuf numpy tokenizers"


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
