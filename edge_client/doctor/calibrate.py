"""`opensled profile calibrate`: measures this machine and its link to the server, and writes a profile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from edge_client.device.config import CalibrateConfig
from edge_client.device.device import endpoint_of
from edge_client.device.known_drafts import choose_drafter
from edge_client.doctor.draft_speed import SpeedReading, Tell, measure, quantity
from edge_client.doctor.edge_section import with_edge_section
from edge_client.doctor.machine import current_load, is_busy
from edge_client.doctor.server_checks import jitter, round_trips
from edge_client.drafters import DRAFTERS
from edge_client.drafters.threads import MODELS, model_drafter
from edge_client.link.link import Link
from edge_client.link.located import locate_server
from hw_profiles import catalog
from hw_profiles.calibration import THIS_MACHINE, baseline, size_of, write
from hw_profiles.command import WIDEST
from hw_profiles.describe import facts
from hw_profiles.detect import detect, usable_cores
from hw_profiles.profiles import DeviceProfile, DraftSpeed, MeasuredLink
from opensled.core.errors import OpenSledError, UsageError
from opensled.core.files import user_path
from opensled.core.printable import visible_line

PINGS, PING_S = 20, 3.0
BY_US = "measured by opensled profile calibrate"


def calibrate(config: CalibrateConfig) -> int:
    """Measure, write and print the profile; about ten seconds besides loading the draft model."""
    config = locate_server(choose_drafter(with_edge_section(config, "profile.calibrate"), "tiny"))
    drafter = model_drafter(config.drafter)
    if not drafter:
        raise UsageError(
            f"--drafter {config.drafter} has no model to measure; give --drafter {' or '.join(MODELS)}"
        )
    path = _destination(config.out)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    link, complaint = asyncio.run(_link(config, at))
    tell = _progress(config.json)
    speed = measure(DRAFTERS.get(drafter)(config.draft_model, config.threads), tell)
    tell("")
    load = current_load()
    profile = merge(baseline(detect()), drafter, config.draft_model, speed, f"{at}, load {load:.2f}")
    if link:
        profile = replace(profile, servers={**profile.servers, config.server: link})
    write(profile, path)
    if config.json:
        print(json.dumps({"path": str(path), **asdict(profile)}, indent=2))
        return 0
    width = min(shutil.get_terminal_size().columns, WIDEST)
    lines = [f"{profile.name}, {drafter} {config.draft_model}", *facts(catalog.device(str(path)), width), ""]
    unmeasured = [f"the link is not measured: {complaint}"] if complaint else []
    print("\n".join(map(visible_line, [*lines, *warnings(speed, load), *unmeasured])))
    plan = f"opensled plan --devices {THIS_MACHINE} --draft {size_of(config.draft_model)}"
    print(f"written to {path}" + ("" if config.out else f"; {plan} uses it"))
    return 0


def _destination(out: str) -> Path:
    """Where the profile goes; checked before anything is measured."""
    path = user_path(out) if out else catalog.own_file("devices", THIS_MACHINE)
    if path is None:
        raise UsageError("OPENSLED_NO_CONFIG is set, so name the file for the profile: --out FILE")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be made: {error.strerror}; choose another --out") from None
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path.parent} cannot be written; choose another --out FILE")
    return path


async def _link(config: CalibrateConfig, at: str) -> tuple[MeasuredLink | None, str]:
    """The link to the server, or why it is not measured: a calibration needs no server."""
    link = Link(endpoint_of(config))
    try:
        await link.describe()
        trips = [1000 * trip for trip in await round_trips(link, PINGS, PING_S)]
    except OpenSledError as error:
        return None, str(error)
    finally:
        await link.close()
    return MeasuredLink(at, quantity(trips, f"{BY_US}: {len(trips)} calls"), round(jitter(trips), 4)), ""


def _progress(quiet: bool) -> Tell:
    """Shows on a terminal what is being measured, on one line that changes."""
    if quiet or not sys.stderr.isatty():
        return lambda about: None
    return lambda about: print(
        f"\r\x1b[K{about and f'measuring {about} ...'}", end="", file=sys.stderr, flush=True
    )


def merge(profile: DeviceProfile, drafter: str, model: str, speed: SpeedReading, when: str) -> DeviceProfile:
    """`profile` with the measured instead of the published numbers of this draft model."""
    size, source = size_of(model), f"{BY_US}: {drafter} {Path(model).name}, {when}"
    prefill = quantity(speed.prefill_per_s, f"{source}; a prompt of {speed.prompt} tokens")
    return replace(
        profile, drafts={**profile.drafts, size: DraftSpeed(size, quantity(speed.decode, source), prefill)}
    )


def warnings(speed: SpeedReading, load: float) -> list[str]:
    """Why the numbers are not reliable; [] if they are."""
    again = "calibrate again when nothing else runs"
    if is_busy(load, usable_cores()):
        on = f"load {load:.1f} on {usable_cores()} cores"
        return [f"note: {on}: these are the numbers of a busy machine; {again}"]
    if speed.unsettled:
        return [f"note: the repetitions differ by {speed.spread:.0%}, as on a busy machine; {again}"]
    return []
