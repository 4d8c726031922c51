"""Runs a command that must not outlive the program that starts it: `python -m opensled.cli.tethered serve ...`.

Standard input is a pipe from that program and ends with it, however it ends. Then this command gets SIGTERM, and is
gone some seconds later, whatever it does.
"""

import os
import signal
import sys
import threading

from opensled.cli.main import main
from opensled.process.ending import ExitWatch

GRACE = 3.0  # seconds to end by itself; chosen


def _watch() -> None:
    while os.read(0, 4096):
        pass
    ExitWatch().arm(GRACE)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_watch, daemon=True).start()
    sys.exit(main())
