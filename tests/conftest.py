"""For every test: one thread for torch (tests share few cores with the processes they start), and no user's files."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What the user of this machine configured or calibrated is no part of any test.
os.environ["XDG_CONFIG_HOME"] = str(Path(__file__).parent / "no such folder")
