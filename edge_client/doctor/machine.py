"""Checks the machine: cores, the container's share of them, load, threads, clock, and cache."""

import ctypes
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import opensled
from edge_client.device.config import DeviceConfig
from edge_client.doctor.finding import Finding, ok, warn
from edge_client.drafters.threads import calibrated_threads, model_drafter
from hw_profiles.detect import allowed_cpus, container_share, usable_cores
from opensled.core.errors import NotFound
from opensled.core.files import user_path
from opensled.models.store import model_file, model_path

SCARCE = 100 << 20  # bytes; with less free space the cache soon cannot be written
CLOCK_SLACK = 300.0  # seconds; a smaller difference between two clocks does no harm here
# `struct timex` of <linux/timex.h> on 64-bit systems: of its 208 bytes those of the field `status`, and a flag in it
TIMEX_BYTES, STATUS, STA_UNSYNC = 256, slice(40, 44), 0x40


def check_machine(config: DeviceConfig) -> list[Finding]:
    """The findings on processor, clock and cache."""
    return [
        check_cores(),
        check_load(_load(), usable_cores()),
        check_threads(config.threads, usable_cores(), calibrated_threads(config.drafter, config.draft_model)),
        check_clock(time.time(), install_time(), is_synchronised()),
        check_cache(user_path(config.cache_dir)),
    ]


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


def _load() -> float:
    """Runnable processes, averaged over a minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def check_load(load: float, cores: int) -> Finding:
    """`load`: runnable processes, averaged over a minute."""
    detail = f"load {load:.1f} on {cores} cores"
    if load > cores + 0.5:
        return warn("load", f"{detail}: other work slows drafting down", "see what runs: top -o %CPU")
    return ok("load", detail)


def check_threads(wanted: int, cores: int, measured: int = 0) -> Finding:
    """llama.cpp's threads wait for each other at every layer: one thread without a core stops all.

    `measured`: the fastest number on this machine, 0 = not measured.
    """
    if wanted > cores:
        return warn(
            "threads",
            f"{wanted} threads on {cores} cores: each token waits for the thread without a core (5 to 70 times slower)",
            f"--threads {max(1, cores - 1)}",
        )
    if wanted == cores > 1:
        return warn(
            "threads",
            f"{wanted} threads on {cores} cores leave none to the rest of the machine",
            f"--threads {cores - 1}",
        )
    guess = ", measured to be fastest" if measured else ", a guess: opensled profile calibrate measures it"
    used = wanted or measured or max(1, cores - 1)
    return ok("threads", f"{used} for drafting on {cores} cores{'' if wanted else guess}")


def model_bytes(config: DeviceConfig) -> int | None:
    """Size of the configured draft model on disk; None if there is none."""
    try:
        kind = model_drafter(config.drafter)
        if kind == "llamacpp":
            return model_file(config.draft_model, "*.gguf").stat().st_size
        if kind == "onnx":
            path = model_path(config.draft_model)
            folder = path if path.is_dir() else path.parent
            return sum(item.stat().st_size for item in folder.rglob("*.onnx*"))
    except (NotFound, OSError):
        return None
    return None


def check_clock(now: float, installed: float, synced: bool | None) -> Finding:
    """Check the clock without a time server; the check of the server compares it with the certificate's dates."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - CLOCK_SLACK:
        return warn(
            "clock",
            f"{shown} is before this software was installed: certificates look not yet valid to this device",
            "sudo timedatectl set-ntp true, or set it: sudo date -u -s '2026-01-31 12:00:00'",
        )
    if synced is False:
        return warn(
            "clock", f"{shown}, not synchronised with any time server", "sudo timedatectl set-ntp true"
        )
    return ok(
        "clock", shown + (", synchronised" if synced else "; whether it is synchronised cannot be told here")
    )


def install_time() -> float:
    """When the files of OpenSLED were written, in seconds since 1970."""
    return Path(opensled.__file__).stat().st_mtime


def is_synchronised() -> bool | None:
    """What the kernel's clock discipline says (adjtimex, which needs no rights to read); None where it cannot be
    asked."""
    state = ctypes.create_string_buffer(TIMEX_BYTES)
    try:
        answered = ctypes.CDLL(None).adjtimex(state) >= 0
    except (OSError, AttributeError):
        return None
    status = int.from_bytes(state.raw[STATUS], sys.byteorder)
    return not status & STA_UNSYNC if answered else None


def check_cache(folder: Path) -> Finding:
    """Whether the cache can be written; without it tokenizers (some megabytes) are fetched at every start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return warn(
            "cache",
            f"{folder} cannot be written: {error.strerror}",
            f"mkdir -p {folder} && chmod u+rwx {folder}",
        )
    detail = f"{folder}, {free / 1e6:,.0f} MB free"
    return (
        warn("cache", detail, f"make room on the disk of {folder}") if free < SCARCE else ok("cache", detail)
    )
