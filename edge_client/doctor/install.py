"""Checks the installation: which one runs, and whether what a device is made of can be loaded."""

from __future__ import annotations

import importlib
import platform
import sys

import opensled
from edge_client.doctor.finding import Finding, fail, ok
from opensled.process import distribution

# They import all libraries of a device
NEEDED = ("edge_client.device.command", "http_api.app", "http_api.server")
REINSTALL = "pip install --upgrade --force-reinstall grpcio protobuf numpy tokenizers"


def check_install(findings: list[Finding]) -> bool:
    """Whether a device can be loaded here: with a broken library nothing else can be examined."""
    running = f"{opensled.__version__}, Python {platform.python_version()}, {sys.executable}"
    findings.append(ok(distribution.name(), running))
    try:
        for module in NEEDED:
            importlib.import_module(module)
    except Exception as error:  # a broken library can raise any exception
        fix = distribution.command() if isinstance(error, ModuleNotFoundError) else REINSTALL
        findings.append(fail("libraries", f"a device cannot be loaded: {error}", fix))
        return False
    findings.append(ok("libraries", "all that a device needs can be loaded"))
    return True
