"""Checks the installation: Python, required packages, extras."""

import importlib
import struct
import sys
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec

import opensled
from edge_client.device.config import DeviceConfig
from edge_client.device.known_drafts import Config, without_model
from edge_client.doctor.finding import Finding, fail, ok, warn
from edge_client.drafters.threads import model_drafter
from opensled.models import llama_api
from opensled.process import distribution
from opensled.process.registry import remedy

OLDEST_PYTHON = (3, 10)
# package -> its module. Without tomli, which old Pythons need, no command starts.
NEEDED = {
    "grpcio": "grpc",
    "numpy": "numpy",
    "prometheus_client": "prometheus_client",
    "protobuf": "google.protobuf",
    "starlette": "starlette",
    "tokenizers": "tokenizers",
    "uvicorn": "uvicorn",
}
# extra -> (a module of it, its purpose). `find_spec` does not import torch.
EXTRAS = {
    "adapt": ("cryptography", "drafts that a server hands out"),
    "home": ("spake2", "pairing, and servers that announce themselves"),
    "llamacpp": (llama_api.BUILT, "drafting with GGUF models"),
    "onnx": ("onnxruntime", "drafting with ONNX models"),
    "prebuilt": (llama_api.PREBUILT, "drafting with GGUF models, without a compiler"),
    "server": ("torch", "serving a target model"),
}
INSTEAD = {"llamacpp": "prebuilt"}  # extra -> the other one with which the drafter of its name works


def check_install(config: DeviceConfig) -> list[Finding]:
    """The findings on this Python and its packages."""
    offered = [name for name in EXTRAS if distribution.offers(name)]
    return [
        check_python(sys.version_info[:3], struct.calcsize("P") * 8),
        check_own(),
        *map(check_package, NEEDED),
        check_wire(),
        *(check_extra(name, config.drafter) for name in offered),
    ]


def check_python(version: tuple[int, ...], bits: int) -> Finding:
    """The version of Python; OpenSLED's libraries have no 32-bit builds."""
    spelled = ".".join(map(str, version))
    if bits < 64:
        return fail(
            "python",
            f"{spelled} is a {bits}-bit build; the libraries OpenSLED needs exist for 64 bits only",
            "install a 64-bit system (on a Raspberry Pi: Raspberry Pi OS 64-bit)",
        )
    if version[:2] < OLDEST_PYTHON:
        return fail("python", f"{spelled} is older than 3.10", "install Python 3.10 or newer")
    return ok("python", f"{spelled}, {bits}-bit, {sys.executable}")


def check_own() -> Finding:
    """Whether OpenSLED itself is installed."""
    if version_of(distribution.name()) is None:
        detail = f"{opensled.__version__} runs from a folder that is not installed"
        return warn("opensled", detail, distribution.command())
    return ok(distribution.name(), opensled.__version__)


def version_of(name: str) -> str | None:
    """Of an installed package; None = there is none of that name."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_package(name: str) -> Finding:
    """Whether one required package is there; pip holds the versions together."""
    if not _is_there(NEEDED[name]):
        return fail(name, "not installed", distribution.command())
    return ok(name, version_of(name) or "of an unknown version")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:  # of the package above it
        return False


def check_wire() -> Finding:
    """Import the generated code; protobuf and grpcio refuse code that is newer than they are."""
    try:
        importlib.import_module("edge_client.link.link")
    except Exception as error:  # a broken library can raise any exception
        return fail(
            "wire", f"gRPC cannot be used: {error}", "pip install --upgrade --force-reinstall grpcio protobuf"
        )
    return ok("wire", "gRPC and the generated messages load")


def can_run(config: Config) -> Config:
    """`config` with the drafter that a device takes where the library of a draft model is missing.

    Only where the user named neither drafter nor draft model; else the check of the draft model reports the missing
    library.
    """
    name = model_drafter(config.drafter)
    if name not in EXTRAS or _has_library(name):
        return config
    return replace(config, drafter=without_model(config), draft_model="")


def _has_library(drafter: str) -> bool:
    extras = (drafter, INSTEAD.get(drafter, drafter))
    return any(_is_there(EXTRAS[extra][0]) for extra in extras)


def check_extra(name: str, drafter: str) -> Finding:
    """Whether an extra is installed; a missing one is a failure only if the configured drafter needs it."""
    module, purpose = EXTRAS[name]
    check = f"extra {name}"
    if _is_there(module):
        return ok(check, f"installed (for {purpose})")
    if model_drafter(drafter) == name and not _has_library(name):
        return fail(check, f"--drafter {drafter} needs {module}", remedy(module).removeprefix("; run: "))
    return ok(check, f"not installed (for {purpose})")
