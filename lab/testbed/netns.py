"""A fleet on one host without containers: every machine is a network namespace, every link is real to its processes.

    python -m lab.testbed.netns [--hub] [--prompts N]        as root; `make netns-check` does it with and without

A verifier, and a Pi 4, a Pi 5, an Orin Nano and a laptop, each behind its own link and with its share of CPU and
memory. With `--hub` the target is in a cloud, and the devices ask a relay on a hub in between, behind a wide-area link.

Every device is asked over its OpenAI API, from inside its namespace. Then each server is killed while it answers, and
started again; then one device. Exit code 0 only if every answer is what the target alone writes, but for the one answer
that the killed device could not finish, and if nothing is left behind.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from lab.testbed.namespaces import CGROUPS, FOLDER, require
from lab.testbed.netns_hub import HubTestbed
from lab.testbed.netns_machines import Testbed
from lab.testbed.netns_trials import trials
from lab.testbed.processes import exit_on_signals
from opensled.core.errors import OpenSledError, UsageError


def _left_behind(name: str) -> list[str]:
    """Namespaces and control groups that begin with `name`."""
    spaces = FOLDER.glob(f"{name}-*") if FOLDER.exists() else ()
    groups = [folder for pattern in ("", "*/") for folder in CGROUPS.glob(f"{pattern}{name}-*")]
    return [str(path) for path in (*spaces, *groups)]


def run(prompts: int, hub: bool) -> int:
    """The whole check; returns the exit code. Raises OpenSledError when the fleet cannot be built."""
    require()
    exit_on_signals()  # so that no process outlives the check
    name = f"osled{os.getpid()}"
    with ExitStack() as stack:
        started = time.monotonic()
        testbed = (HubTestbed if hub else Testbed)(stack, name)
        print(
            f"all runs after {time.monotonic() - started:.0f} s", *testbed.described(), sep="\n", flush=True
        )
        right = trials(testbed, prompts)
    left = _left_behind(name)
    print(f"\nleft behind: {', '.join(left) or 'nothing'}")
    return 0 if right and not left else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see the top of this file."""
    parser = argparse.ArgumentParser("python -m lab.testbed.netns", description=__doc__)
    parser.add_argument(
        "--prompts", type=int, default=3, metavar="N", help="prompts for each device and trial"
    )
    parser.add_argument("--hub", action="store_true", help="a relay between the devices and the target")
    try:
        given = parser.parse_args(arguments)
        if given.prompts < 2:
            raise UsageError("--prompts must be at least 2: one to answer, and one to break")
        return run(given.prompts, given.hub)
    except OpenSledError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
