"""The demo on a real model: four devices draft for one server, measured in turns with no drafts, all texts checked."""

import asyncio
import json
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from lab.testbed.client import StreamedReply, ask
from lab.testbed.config import DemoConfig
from lab.testbed.demo_device import DemoDevice, speed, stop_fleet
from lab.testbed.demo_report import Run, conclude
from lab.testbed.demo_view import DemoView
from lab.testbed.forcing import Followed, follow
from lab.testbed.gguf_reference import GgufReference
from lab.testbed.processes import QUIET, Process, exit_on_signals
from opensled.models.store import is_here, model_path
from opensled.process import distribution
from verify_server.engine.torch import loading

MODEL_ID = "smollm2"
ANSWER = 40  # tokens at most: one core writes 7 to 30 a second
# Asked of every device, one at a time; then one of the others of each device, all at once.
TURNS = (
    "What is the capital of France, and what is it known for?",
    "A box holds 12 eggs. How many eggs are in 7 boxes? Show how you calculate.",
    "Copy this list, line by line:\n- 3 apples from the market\n- 2 loaves of bread from the bakery\n"
    "- 6 eggs from the farm\n- 1 bottle of milk from the shop",
)
CROWD = (
    "Why is the sky blue? Answer in one sentence.",
    "Write one friendly sentence that invites a neighbour to dinner.",
    "Translate into French: Good morning, how are you today?",
    "Give me three names for a black cat.",
)
SAMPLED = {"temperature": 0.8, "seed": 7}

# Dtype of the server and of the reference -> which lead of the reference's choice over another token, in logits, may
# flip: they add up in other orders. Logits between 16 and 32 are 0.125 apart in bfloat16, so one such step may flip. On
# an AMD EPYC none of the demo's tokens did.
BOUNDS = {"float32": 0.001, "bfloat16": 0.13}

# Name, drafter. `llamacpp` drafts with the target's own file, 4 bits a weight, `onnx` with its small draft.
DRAFT = "smollm2-draft"
FLEET = (
    ("kitchen-hub", "llamacpp"),
    ("robot", "onnx"),
    ("hall-panel", "cacheback"),
    ("sensor-box", "lookup"),
)


def demo_real(config: DemoConfig, path: Path, busy: str = "") -> int:
    """Run it with the GGUF file at `path`; exit code 0 only if every answer is what the target alone writes.

    `busy`: what a busy machine does to the figures; "" = it is not busy.
    """
    exit_on_signals()  # so that no process of the fleet outlives the demo
    started, dtype, tokens = time.monotonic(), _dtype(path), min(config.max_tokens, ANSWER)
    devices: list[DemoDevice] = []
    with DemoView(devices, quiet=config.json) as view, ExitStack() as stack:
        view.say(f"starting the server: {MODEL_ID}, {dtype}, level exact, one thread")
        server = stack.enter_context(_server(path, "torch", "--dtype", dtype, "--numerics", "exact"))
        view.say("the server starts; plain transformers loads the same weights, for the check at the end")
        loading.use_threads(1)  # the server has the other core
        reference = GgufReference(path, dtype)
        models = {"onnx": _onnx_draft(view)}
        fleet = [(name, drafter) for name, drafter in FLEET if models.get(drafter, path)]
        address = server.wait_ready()
        view.say(f"server ready on {address}; starting {len(fleet)} devices, one thread each")
        edges = {
            name: stack.enter_context(_edge(address, drafter, models.get(drafter) or path))
            for name, drafter in fleet
        }
        plain = stack.enter_context(_edge(address, "none", path))
        devices += [_device(number, *each, tokens) for number, each in enumerate(fleet)]
        urls = {name: f"http://{edge.wait_ready()}" for name, edge in edges.items()}
        asyncio.run(_ask_all(devices, urls, f"http://{plain.wait_ready()}", view))
        totals = stop_fleet(server, [*edges.values(), plain])
        file_alone = _file_alone(path, devices, view)
        _compare(devices, reference, BOUNDS[dtype], view)
    run = Run(MODEL_ID, dtype, BOUNDS[dtype], time.monotonic() - started, totals, *file_alone, busy)
    return conclude(devices, run, as_json=config.json)


def _dtype(path: Path) -> str:
    """What the server's `--dtype auto` takes; the bound of the check depends on it."""
    weights = loading.find_weights(str(path))
    return str(loading.pick_dtype("auto", loading.pick_device("auto"), weights)).removeprefix("torch.")


def _onnx_draft(view: DemoView) -> Path | None:
    """The folder of the small draft; None without it, or without the library that runs it."""
    if find_spec("onnxruntime") is None:
        view.say(f"without the ONNX device: {distribution.command('onnx')} installs what it runs on")
        return None
    if not is_here(DRAFT):
        view.say(f"without the ONNX device: opensled pull {MODEL_ID} makes its draft model")
        return None
    return model_path(DRAFT)


def _server(path: Path, *engine: str) -> Process:
    """The devices alone draft here."""
    fixed = (str(path), "--server-drafter", "none", "--threads", "1", "--listen", "127.0.0.1:0", "--json")
    return Process(("serve", *fixed, "--engine", *engine, *QUIET), isolated=True)


def _edge(address: str, drafter: str, model: Path) -> Process:
    fixed = ("--server", address, "--http", "127.0.0.1:0", "--threads", "1")
    return Process(("edge", *fixed, "--drafter", drafter, "--draft-model", str(model), *QUIET), isolated=True)


def _device(number: int, name: str, drafter: str, tokens: int) -> DemoDevice:
    bodies = [_body(question, tokens) for question in TURNS]
    crowd = _body(CROWD[number], tokens, **(SAMPLED if number % 2 else {}))
    return DemoDevice(name, drafter, [*bodies, crowd], alone=len(TURNS))


def _body(question: str, tokens: int, **sampling: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "max_tokens": tokens, "temperature": 0, **sampling}


async def _ask_all(devices: list[DemoDevice], urls: dict[str, str], plain: str, view: DemoView) -> None:
    view.say("a first answer of each device, which is not counted")
    for url in (*urls.values(), plain):
        await ask(url, [_body("Say hello.", 8)], [])
    await _in_turns(devices, urls, plain, view)
    view.say("all devices at once, each with a question of its own")
    await asyncio.gather(
        *(ask(urls[device.name], device.prompts[-1:], device.replies, view.refresh) for device in devices)
    )
    view.say("the same questions without drafts")
    await asyncio.gather(*(ask(plain, device.prompts[-1:], device.plain) for device in devices))
    for device in devices:
        status = httpx.get(f"{urls[device.name]}/status", timeout=60, trust_env=False).json()
        device.at_rest = "" if status["drafting"] else status["words"]


async def _in_turns(devices: list[DemoDevice], urls: dict[str, str], plain: str, view: DemoView) -> None:
    """Every question to every device and once without drafts, one at a time; each question begins with another one."""
    contenders: list[DemoDevice | None] = [*devices, None]
    for turn, question in enumerate(TURNS):
        for device in (*contenders[turn:], *contenders[:turn]):
            view.say(f"{device.name if device else 'the server, without drafts,'} answers, and nothing else")
            body, replies = devices[0].prompts[turn], device.replies if device else []
            url = urls[device.name] if device else plain
            await ask(url, [body], replies, partial(_show, view, question, replies))
            if device is None:
                for each in devices:
                    each.plain += replies
        view.keep(question, devices[0].replies[-1].text)


def _show(view: DemoView, question: str, replies: list[StreamedReply]) -> None:
    view.write(question, replies[-1].text)


def _file_alone(path: Path, devices: list[DemoDevice], view: DemoView) -> tuple[float, int]:
    """A device without a server: tokens/s of llama.cpp on the same file, and how many texts are the same."""
    view.say("llama.cpp writes the same answers with the 4-bit file alone")
    replies: list[StreamedReply] = []
    with _server(path, "llamacpp") as server, _edge(server.wait_ready(), "none", path) as edge:
        url = f"http://{edge.wait_ready()}"
        asyncio.run(ask(url, [_body("Say hello.", 8)], []))
        asyncio.run(ask(url, devices[0].prompts[: len(TURNS)], replies))
        edge.stop()
    same = sum(reply.text == plain.text for reply, plain in zip(replies, devices[0].plain))
    return speed(replies), same


def _compare(devices: list[DemoDevice], reference: GgufReference, bound: float, view: DemoView) -> None:
    """Let plain transformers follow every text; a text that several devices wrote is followed once."""
    view.say("plain transformers reads every answer: would the target alone have written it?")
    found: dict[tuple[str, str], Followed | None] = {}
    for device in devices:
        for body, reply in zip(device.prompts, device.replies):
            key = (json.dumps(body), reply.text)
            if key not in found:
                found[key] = follow(reference, body, reply.text, bound, one_pass=True)
            device.paths.append(found[key])
            view.refresh()
