"""Count the classes that a reader meets who follows a drafted and verified block through the product.

    python -m lab.benchmarks.classes_of_a_block [--engine NAME] [--json]

One process runs `opensled serve --model tiny` with its default policy, and a device that drafts four tokens each time
from a text that repeats itself. The server measures nothing, and the clock of its loop stands still: so drafts take no
time, and the server waits for them, on a busy machine, too. A profile hook records from the moment the device hands on
the text of one accepted draft until it hands on the text of the next one. A class counts when Python enters a function
of the product whose first argument is an instance of the class, or the class itself. Blocks differ (a verdict comes
earlier or later), so the program follows several and shows what at least half of them met. `house` runs this
file in other trees too, so it imports nothing of `benchmarks`, and of the product as little as it can; it counts the
constants, and what the functions name.
"""

import argparse
import asyncio
import io
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from contextlib import aclosing, redirect_stdout
from types import FrameType, SimpleNamespace
from typing import TypeVar

from edge_client.device.device import Device, connect
from edge_client.device.prompt_config import GenerateConfig
from hw_profiles.step_cost import Roofline
from opensled.cli.main import main as opensled
from opensled.core.answer import Task
from opensled.core.errors import Unreachable
from opensled.core.messages import SamplingParams
from verify_server.engine.base import TargetEngine
from verify_server.round import loaded_model
from verify_server.start import command

PRODUCT = ("opensled", "http_api", "edge_client", "verify_server", "scheduler", "relay", "hw_profiles")
Thing = TypeVar("Thing")  # a class, a file or a function
GENERATED = "opensled.v1"  # protobuf's classes
PROMPT = "one two three four five six seven eight nine ten\n" * 6
BLOCKS = 12
ROUNDS_BEFORE = 1  # drafted blocks of an answer that are not followed
ANSWERS = 4  # at most; one is enough
LOADING_S = 240.0  # the server may take so long to load its target on a busy machine


class ClassRecorder:
    """A profile hook that notes the functions of the product that are entered, their files and their classes."""

    def __init__(self) -> None:
        self.classes: set[str] = set()
        self.files: set[str] = set()
        self.functions: set[tuple[str, int]] = set()  # (module, first line)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """The hook of `sys.setprofile`; it looks at calls only."""
        if event != "call":
            return
        if frame.f_code.co_filename != "<string>":  # where generated __init__ and __new__ come from
            file = str(frame.f_globals.get("__name__", ""))
            if not _is_product(file):
                return
            self.files.add(file)
            self.functions.add((file, frame.f_code.co_firstlineno))
        if frame.f_code.co_argcount:
            first = frame.f_locals.get(frame.f_code.co_varnames[0])
            kind = first if isinstance(first, type) else type(first)
            if _is_product(kind.__module__):
                self.classes.add(f"{kind.__module__}.{kind.__qualname__}")


class Follower:
    """Follows the blocks of a device whose server runs in the main thread of this process."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._recorder: ClassRecorder | None = None  # None = between blocks
        self.blocks: list[ClassRecorder] = []
        self.error: BaseException | None = None

    def hook(self, frame: FrameType, event: str, argument: object) -> None:
        """The hook of all threads."""
        if self._recorder is not None:
            self._recorder(frame, event, argument)

    def run(self) -> None:
        """Follow blocks, then end the server."""
        try:
            asyncio.run(self._follow_all())
        except Exception as error:
            self.error = error
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    async def _follow_all(self) -> None:
        device = await self._connected()
        os.kill(os.getpid(), signal.SIGUSR1)
        try:
            for _ in range(ANSWERS):
                if len(self.blocks) < BLOCKS:
                    await self._follow(device)
        finally:
            await device.close()

    async def _follow(self, device: Device) -> None:
        """Follow the later blocks of one answer."""
        rounds = 0
        task = Task(PROMPT, SamplingParams(temperature=0.0, max_tokens=120, ignore_eos=True))
        async with aclosing(device.answer(task)) as chunks:
            async for chunk in chunks:
                if "accepted" not in chunk.origins:
                    continue
                rounds += 1
                if self._recorder is not None and chunk.finish_reason is None:
                    self.blocks.append(self._recorder)
                self._recorder = ClassRecorder() if rounds >= ROUNDS_BEFORE else None
                if len(self.blocks) == BLOCKS:
                    break
        self._recorder = None

    async def _connected(self) -> Device:
        now = asyncio.get_running_loop().time
        deadline = now() + LOADING_S
        while True:
            try:
                return await connect(
                    GenerateConfig(server=self.server, drafter="lookup", stop="fixed", draft_length=4)
                )
            except Unreachable:
                if now() > deadline:
                    raise
                await asyncio.sleep(0.2)


def free_port() -> int:
    """Not the testbed's: this program also follows older trees, where that stood elsewhere."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _unmeasured(engine: TargetEngine, guess: Roofline) -> Roofline:
    """A step that takes long whatever its rows: a busy machine may find that no draft is worth its rows."""
    return Roofline(read_s=1.0, token_s=1e-6)


def follow(engine: str) -> list[ClassRecorder]:
    """Blocks of a server with this engine. Raises SystemExit when the device drafted fewer than BLOCKS."""
    follower = Follower(f"127.0.0.1:{free_port()}")
    command.time = SimpleNamespace(monotonic=lambda: 0.0)  # type: ignore[assignment]
    loaded_model.measure = _unmeasured  # type: ignore[assignment]
    # Python before 3.12 sets no hook in a thread that runs already. The main thread gets its hook by a signal, after
    # it has loaded the target: with the hook that takes a minute.
    threading.setprofile(follower.hook)
    signal.signal(signal.SIGUSR1, lambda *_: sys.setprofile(follower.hook))
    device = threading.Thread(target=follower.run)
    device.start()
    with redirect_stdout(io.StringIO()):
        places = ("--listen", follower.server, "--engine", engine, "--server-drafter", "none")
        opensled(["serve", "--model", "tiny", *places])
    sys.setprofile(None)
    device.join()
    if len(follower.blocks) < BLOCKS:
        raise SystemExit(f"the device drafted {len(follower.blocks)} of {BLOCKS} blocks: {follower.error!r}")
    return follower.blocks


def together(blocks: list[ClassRecorder]) -> ClassRecorder:
    """What at least half of the blocks met: what only some block meets depends on the load of the machine."""
    met = ClassRecorder()
    met.classes = _common([block.classes for block in blocks])
    met.files = _common([block.files for block in blocks])
    met.functions = _common([block.functions for block in blocks])
    return met


def _common(found: list[set[Thing]]) -> set[Thing]:
    counts = Counter(thing for each in found for thing in each)
    return {thing for thing, count in counts.items() if 2 * count >= len(found)}


def _is_product(module: str) -> bool:
    return module.split(".")[0] in PRODUCT and not module.startswith(GENERATED)


def by_package(classes: set[str]) -> dict[str, list[str]]:
    """The classes of each package of the product, named without it."""
    return {
        package: sorted(
            name.removeprefix(f"{package}.") for name in classes if name.startswith(f"{package}.")
        )
        for package in PRODUCT
    }


def main() -> None:
    """Print the count and the classes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--engine", default="torch", help="of the server; llamacpp starts sooner")
    arguments = parser.parse_args()
    blocks = follow(arguments.engine)
    met = together(blocks)
    groups = by_package(met.classes)
    if arguments.json:
        counts = {"blocks": len(blocks), "classes": len(met.classes), "files": len(met.files)}
        print(json.dumps({**counts, "functions": sorted(met.functions), **groups}))
        return
    print(
        f"{len(met.classes)} classes, {len(met.files)} files: what at least half of {len(blocks)} blocks met"
    )
    for package, names in groups.items():
        print(f"\n{package}: {len(names)}")
        print("\n".join(f"  {name}" for name in names))


if __name__ == "__main__":
    main()
