"""Takes from Python what Linux alone has: /proc, /sys, affinity, and the name of the system (test_without_linux.py)."""

import builtins
import io
import os
import socket
import sys
import types

HIDDEN = ("/proc", "/sys")


def _hiding(function):
    def without(path, *arguments, **named):
        if not isinstance(path, int) and os.fsdecode(path).startswith(HIDDEN):
            raise FileNotFoundError(2, "hidden", os.fsdecode(path))
        return function(path, *arguments, **named)

    return without


for name in ("stat", "lstat", "listdir", "scandir", "open"):
    setattr(os, name, _hiding(getattr(os, name)))
builtins.open = io.open = _hiding(io.open)
del os.sched_getaffinity, socket.SOCK_CLOEXEC, os.sysconf_names["SC_AVPHYS_PAGES"]
if "torch" not in sys.orig_argv:  # its libraries would look for parts of that system
    sys.platform = "darwin"
    sys.modules["_scproxy"] = types.ModuleType("_scproxy")  # urllib asks it for the proxies of the system
    vars(sys.modules["_scproxy"]).update(_get_proxies=dict, _get_proxy_settings=dict)
