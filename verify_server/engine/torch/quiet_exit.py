"""The end of a process that has Triton in it, which transformers imports where it is installed.

At that end nanobind, by which Triton is bound to Python, lists on the standard error each of Triton's objects that is
still there. No user of a server needs that list, and it would stand among the lines of a log in JSON.
"""

import atexit
import os
import sys
from importlib.util import find_spec


def silence_bindings() -> None:
    """To be called before anything registers for the end of the process what it has to say then: that runs earlier."""
    if find_spec("triton") is not None:
        atexit.register(_silence)


def _silence() -> None:
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
