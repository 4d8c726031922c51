"""`python -m tests.on_terminal TERMINAL serve ...`: an `opensled` command whose own terminal is that.

TERMINAL is a path; "-": it has none, and ignores SIGHUP, as under nohup.
"""

import os
import signal
import sys

from opensled.cli.main import main

if __name__ == "__main__":
    os.setsid()
    if (terminal := sys.argv.pop(1)) == "-":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests themselves run under nohup
        os.open(terminal, os.O_RDWR)  # the first one that the leader of a session opens becomes its own
    sys.exit(main())
