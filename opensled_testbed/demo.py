"""`opensled demo`: one server, several devices, real prompts at once, every answer checked against the target alone."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx

from opensled.errors import OpenSledError
from opensled.store import heldout_path, model_path
from opensled_testbed.client import Reply, stream_chat
from opensled_testbed.config import DemoConfig
from opensled_testbed.demo_view import View
from opensled_testbed.processes import Process
from opensled_testbed.reference import Reference

TARGET, DRAFT = "tiny", "tiny-draft"

# float64: the reference computes in other shapes, and two nearly equal tokens must not flip the comparison.
SERVER = (
    *("serve", "--model", TARGET, "--listen", "127.0.0.1:0"),
    *("--dtype", "float64", "--threads", "1", "--json"),
)

# Name, drafter, and what else the device is started with: different devices on purpose.
FLEET = (
    ("kitchen-hub", "llamacpp", ()),
    ("hall-panel", "llamacpp", ("--draft-length", "8", "--stop", "confidence")),
    ("robot", "onnx", ()),
    ("sensor-box", "lookup", ()),
)


@dataclass
class Device:
    """One device of the demo and what it has done."""

    name: str
    drafter: str
    prompts: list[dict[str, Any]]  # OpenAI request bodies
    replies: list[Reply] = field(default_factory=list)
    identical: int = 0  # answers compared and found equal
    compared: int = 0

    def total(self, name: str) -> float:
        return sum(reply.usage.get("opensled", {}).get(name, 0) for reply in self.replies)

    @property
    def tokens(self) -> int:
        return sum(reply.usage.get("completion_tokens", 0) for reply in self.replies)

    def _round_tokens(self) -> float:
        """Tokens committed by rounds: all that the server did not decode by itself."""
        return self.tokens - self.total("server_decoded")

    def report(self) -> dict[str, Any]:
        drafted, rounds = self.total("drafted"), self.total("rounds")
        seconds = sum(reply.seconds for reply in self.replies)
        return {
            "name": self.name,
            "drafter": self.drafter,
            "tokens": self.tokens,
            "rounds": rounds,
            "drafted": drafted,
            "accepted": self.total("accepted"),
            "acceptance_rate": round(self.total("accepted") / drafted, 3) if drafted else 0.0,
            "tokens_per_round": round(self._round_tokens() / rounds, 3) if rounds else 0.0,
            "tokens_per_second": round(self.tokens / seconds, 1) if seconds else 0.0,
            "identical": self.compared > 0 and self.identical == self.compared,
        }


def demo(config: DemoConfig) -> int:
    """Run it; exit code 0 only if every answer is what the target alone writes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)  # so that no process of the fleet outlives the demo
    devices = [Device(name, drafter, []) for name, drafter, _ in FLEET]
    _hand_out_prompts(devices, config)
    with View(devices, quiet=config.json) as view:
        totals = _run_fleet(devices, config, view)
        _compare(devices, view)
    return _conclude(devices, totals, config)


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _run_fleet(devices: list[Device], config: DemoConfig, view: View) -> dict[str, float]:
    """All processes from start to stop; returns the server's totals."""
    with ExitStack() as stack:
        view.say("starting the server")
        server = stack.enter_context(Process(SERVER, isolated=True))
        address = server.wait_ready()
        view.say(f"server ready on {address}; starting {len(devices)} devices")
        edges = [
            stack.enter_context(
                Process(["edge", "--server", address, *_device_flags(drafter, extra, config)], isolated=True)
            )
            for _, drafter, extra in FLEET
        ]
        urls = [f"http://{edge.wait_ready()}" for edge in edges]
        view.say("all devices draft for the one server")
        asyncio.run(_ask_all(devices, urls, view.refresh))
        for edge in edges:
            edge.stop()
        if server.stop() != 0:
            raise OpenSledError("the server of the demo failed; its errors are above")
    totals: dict[str, float] = json.loads(server.lines[-1])
    return totals


def _device_flags(drafter: str, extra: tuple[str, ...], config: DemoConfig) -> list[str]:
    length = ["--draft-length", str(config.draft_length)]
    return [
        "--drafter",
        drafter,
        "--draft-model",
        DRAFT,
        "--http",
        "127.0.0.1:0",
        "--threads",
        "1",
        *length,
        *extra,
    ]


async def _ask_all(devices: list[Device], urls: list[str], refresh: Callable[[], None]) -> None:
    await asyncio.gather(*(_ask(device, url, refresh) for device, url in zip(devices, urls)))


async def _ask(device: Device, url: str, refresh: Callable[[], None]) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
        for body in device.prompts:
            device.replies.append(Reply())
            async for reply in stream_chat(http, body):
                device.replies[-1] = reply
                refresh()


def _hand_out_prompts(devices: list[Device], config: DemoConfig) -> None:
    """Each device gets prompts of different tasks: the first greedy, the others sampled with a seed."""
    tasks: dict[str, list[dict[str, Any]]] = {}
    for line in heldout_path().read_text().splitlines():
        item = json.loads(line)
        if item.get("messages"):
            tasks.setdefault(item["task"], []).append(item)
    pools = list(tasks.values())
    for number, device in enumerate(devices):
        for turn in range(config.prompts):
            pool = pools[(number + turn) % len(pools)]
            sampling = {"temperature": 0.8, "seed": 100 * number + turn} if turn else {"temperature": 0}
            body = {"model": TARGET, "messages": pool[number % len(pool)]["messages"]}
            device.prompts.append({**body, **sampling, "max_tokens": config.max_tokens})


def _compare(devices: list[Device], view: View) -> None:
    """Let the target alone write every answer again, with plain transformers and no product code."""
    view.say("the target alone writes the same answers, without OpenSLED")
    reference = Reference(model_path(TARGET), dtype="float64")
    for device in devices:
        for body, reply in zip(device.prompts, device.replies):
            tokens, _ = reference.generate(
                reference.render_chat(body["messages"]),
                temperature=body["temperature"],
                seed=body.get("seed"),
                max_tokens=body["max_tokens"],
            )
            device.compared += 1
            device.identical += reference.decode(tokens) == reply.text
            view.refresh()


def _conclude(devices: list[Device], totals: dict[str, float], config: DemoConfig) -> int:
    reports = [device.report() for device in devices]
    identical = all(report["identical"] for report in reports)
    if config.json:
        print(json.dumps({"identical": identical, "devices": reports, "server": totals}))
        return 0 if identical else 1
    print(
        f"server: {totals['steps']:.0f} steps, {totals['mean_batch']:.1f} devices per step, "
        f"{totals['tokens_per_step']:.1f} tokens per step"
    )
    answers = sum(device.compared for device in devices)
    if identical:
        print(f"identical: all {answers} answers are exactly what the target alone writes")
        return 0
    wrong = answers - sum(device.identical for device in devices)
    print(f"NOT identical: {wrong} of {answers} answers differ from the target alone", file=sys.stderr)
    return 1
