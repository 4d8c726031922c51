"""The demo on the tiny family: one server, four devices, all answers checked against the target alone."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from lab.testbed.client import ask
from lab.testbed.config import DemoConfig
from lab.testbed.demo_device import DemoDevice, stop_fleet, why_low
from lab.testbed.demo_view import DemoView
from lab.testbed.forcing import follow, total
from lab.testbed.processes import QUIET, Process, exit_on_signals
from lab.testbed.prompts import TARGET, prompts_of
from lab.testbed.reference import Reference
from opensled.models.store import model_path

if TYPE_CHECKING:
    from lab.testbed.credentials import FleetFlags

DRAFT = "tiny-draft"

# The devices alone draft here
SERVER = ("serve", TARGET, "--server-drafter", "none", "--listen", "127.0.0.1:0", "--threads", "1", "--json")
# Engine -> its flags, and which lead of the target's choice over another token, in logits, may flip. The reference
# computes in other shapes than the server: in float64 no tokens of the demo stand so close that it could matter.
# llama.cpp computes the same float16 weights with float16 keys, values and activations: its logits were up to 0.014
# off (410 positions), so that two of them may come 0.028 closer or further apart.
ENGINES: dict[str, tuple[tuple[str, ...], float]] = {
    "torch": (("--dtype", "float64"), 0.0),
    "llamacpp": (("--engine", "llamacpp"), 0.03),
}

# Name, drafter, and what else the device is started with: different devices on purpose.
FLEET = (
    ("kitchen-hub", "llamacpp", ()),
    ("hall-panel", "llamacpp", ("--draft-length", "8", "--stop", "confidence")),
    ("robot", "onnx", ()),
    ("sensor-box", "lookup", ()),
)


def demo_tiny(config: DemoConfig) -> int:
    """Run it; exit code 0 only if every answer is what the target alone writes, up to flips within the bound."""
    exit_on_signals()  # so that no process of the fleet outlives the demo
    devices = [
        DemoDevice(name, drafter, prompts_of(number, config.prompts, config.max_tokens), alone=1)
        for number, (name, drafter, _) in enumerate(FLEET)
    ]
    with DemoView(devices, quiet=config.json) as view:
        totals = _run_fleet(devices, config, view)
        _compare(devices, ENGINES[config.engine][1], view)
    return _conclude(devices, totals, config)


def _run_fleet(devices: list[DemoDevice], config: DemoConfig, view: DemoView) -> dict[str, float]:
    """All processes from start to stop; returns the server's totals."""
    with ExitStack() as stack:
        view.say("starting the server")
        flags = _credentials(stack) if config.mtls else None
        command = [*SERVER, *ENGINES[config.engine][0], *(flags.server() if flags else ()), *QUIET]
        server = stack.enter_context(Process(command, isolated=True))
        address = server.wait_ready()
        view.say(f"server ready on {address}; starting {len(devices)} devices")

        def start(name: str, drafter: str, extra: tuple[str, ...] = ()) -> Process:
            known = flags.device(name) if flags else ()
            command = ["edge", "--server", address, *known, *_device_flags(drafter, extra, config), *QUIET]
            return stack.enter_context(Process(command, isolated=True))

        edges = [start(*device) for device in FLEET]
        urls = [f"http://{edge.wait_ready()}" for edge in edges]
        edges.append(start(FLEET[0][0], "none"))
        asyncio.run(_ask_all(devices, urls, f"http://{edges[-1].wait_ready()}", view))
        return stop_fleet(server, edges)


def _credentials(stack: ExitStack) -> FleetFlags:
    """Certificates and tokens that live as long as the fleet."""
    from lab.testbed.credentials import fleet_flags

    return stack.enter_context(fleet_flags("127.0.0.1", [name for name, _, _ in FLEET]))


def _device_flags(drafter: str, extra: tuple[str, ...], config: DemoConfig) -> list[str]:
    fixed = ("--draft-model", DRAFT, "--http", "127.0.0.1:0", "--threads", "1")
    # The tiny target is so quick that a device which decides by speed would leave the writing to it.
    blocks = ("--stop", "fixed", "--draft-length", str(config.draft_length))
    return ["--drafter", drafter, *fixed, *blocks, *extra]


async def _ask_all(devices: list[DemoDevice], urls: list[str], plain: str, view: DemoView) -> None:
    for device, url in zip(devices, urls):
        view.say(f"{device.name} answers, with drafts and without, and nothing else")
        await ask(url, device.prompts[:1], device.replies, view.refresh)
        await ask(plain, device.prompts, device.plain)
    view.say("all devices draft for the one server")
    rest = (ask(url, device.prompts[1:], device.replies, view.refresh) for device, url in zip(devices, urls))
    await asyncio.gather(*rest)


def _compare(devices: list[DemoDevice], bound: float, view: DemoView) -> None:
    """Let the target alone write every answer again, with plain transformers and no product code."""
    reference = Reference(model_path(TARGET), dtype="float64")
    for number, device in enumerate(devices, 1):
        of_all = f"({number} of {len(devices)})"
        view.say(f"the target alone writes the answers of {device.name} {of_all}, without OpenSLED")
        for body, reply in zip(device.prompts, device.replies):
            device.paths.append(follow(reference, body, reply.text, bound, one_pass=True))
            view.refresh()


def _conclude(devices: list[DemoDevice], totals: dict[str, float], config: DemoConfig) -> int:
    bound = ENGINES[config.engine][1]
    if config.json:
        print(json.dumps(_document(devices, totals, bound)))
    else:
        _tell(devices, totals, bound)
    return 1 if any(None in device.paths for device in devices) else 0


def _document(devices: list[DemoDevice], totals: dict[str, float], bound: float) -> dict[str, Any]:
    paths = [path for device in devices for path in device.paths]
    flips, lead = total(paths)
    reports = [device.report() for device in devices]
    return {
        "identical": all(report["identical"] for report in reports),
        "wrong": paths.count(None),
        "flips": flips,
        "largest_lead": lead,
        "bound": bound,
        "devices": reports,
        "server": totals,
    }


def _tell(devices: list[DemoDevice], totals: dict[str, float], bound: float) -> None:
    paths = [path for device in devices for path in device.paths]
    flips, lead = total(paths)
    if reason := why_low(devices):
        print(reason)
    print(
        f"server: {totals['steps']:.0f} steps, {totals['mean_batch']:.1f} devices per step, "
        f"{totals['tokens_per_step']:.1f} tokens per step"
    )
    unlike = sum(device.unlike_plain for device in devices)
    print(f"without drafts: {len(paths) - unlike} of {len(paths)} answers are the same")
    if wrong := paths.count(None):
        print(f"NOT identical: {wrong} of {len(paths)} answers differ from the target alone", file=sys.stderr)
    elif flips:
        print(
            f"all {len(paths)} answers are what the target alone writes, up to {flips} flips where two tokens were "
            f"less than {bound} logits apart (the most: {lead:.4f})"
        )
    else:
        print(f"identical: all {len(paths)} answers are exactly what the target alone writes")
