"""Checks the installation: Python, required packages, extras."""

import importlib
import re
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?\s*(?:>=\s*([\d.]+))?[^;]*(?:;(.*))?")


@dataclass(frozen=True)
class Requirement:
    """`name` at least at `version`, "" = any; for `extra`, "" = always."""

    name: str
    version: str
    extra: str


def check_install(config: DeviceConfig) -> list[Finding]:
    """The findings on this Python and its packages."""
    findings = [check_python(sys.version_info[:3], struct.calcsize("P") * 8)]
    requirements = list(read_requirements(_declared_requirements()))
    if not requirements:
        findings.append(
            warn(
                "opensled",
                f"{opensled.__version__} runs from a folder that is not installed",
                distribution.command(),
            )
        )
    else:
        findings.append(ok(distribution.name(), opensled.__version__))
    findings += [check_package(item, version_of) for item in requirements if not item.extra]
    findings.append(check_wire())
    offered = [name for name in EXTRAS if distribution.offers(name)]
    return findings + [check_extra(name, config.drafter, requirements) for name in offered]


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


def _declared_requirements() -> list[str]:
    try:
        return metadata.requires(distribution.name()) or []
    except metadata.PackageNotFoundError:
        return []


def read_requirements(lines: Iterable[str]) -> Iterable[Requirement]:
    """The requirements of `Requires-Dist` lines ("name>=1.2; marker") for this Python."""
    for line in lines:
        found = _REQUIREMENT.fullmatch(line)
        if not found or not _applies(found[3] or ""):
            continue
        extra = re.search(r"extra\s*==\s*['\"](\w+)", found[3] or "")
        yield Requirement(found[1], found[2] or "", extra[1] if extra else "")


def _applies(marker: str) -> bool:
    """Besides extras our only marker is a bound on the version of Python."""
    bound = re.search(r"python_version\s*(<|>=)\s*['\"]([\d.]+)", marker)
    if not bound:
        return True
    older = sys.version_info[:2] < _numbers(bound[2])
    return older if bound[1] == "<" else not older


def version_of(name: str) -> str | None:
    """Of an installed package; None = there is none of that name."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_package(requirement: Requirement, version_of: Callable[[str], str | None]) -> Finding:
    """Whether one required package is installed, new enough, and made for this Python."""
    name, version = requirement.name, version_of(requirement.name)
    install = f'pip install --upgrade "{name}>={requirement.version}"'
    if version is None:
        return fail(name, "not installed", install)
    if _numbers(version) < _numbers(requirement.version):
        return fail(name, f"{version} is older than {requirement.version}", install)
    if not made_for_this_python(name):
        return fail(
            name, f"{version} is not made for Python {sys.version_info[0]}.{sys.version_info[1]}", install
        )
    return ok(name, version)


def made_for_this_python(name: str) -> bool:
    """Whether this Python lies within the package's own `Requires-Python` (lower and upper bounds)."""
    try:
        bounds = metadata.metadata(name)["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        return True
    return fits_bounds(sys.version_info[:3], bounds)


def fits_bounds(version: tuple[int, ...], bounds: str) -> bool:
    """Whether `version` obeys every >=, > , <= and < of `bounds`, such as ">=3.11,<3.15"."""
    for operator, text in re.findall(r"(>=|<=|>|<)\s*([\d.]+)", bounds):
        bound = _numbers(text)
        shorter = version[: len(bound)]
        holds = {">=": version >= bound, ">": shorter > bound, "<": version < bound, "<=": shorter <= bound}
        if not holds[operator]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """(1, 85, 1) of "1.85.1", "1.85.1rc1" or "1.85.1+cpu"."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else (0,)


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
    return any(find_spec(EXTRAS[extra][0]) is not None for extra in extras)


def check_extra(name: str, drafter: str, requirements: list[Requirement]) -> Finding:
    """Whether an extra is installed; a missing one is a failure only if the configured drafter needs it."""
    module, purpose = EXTRAS[name]
    check = f"extra {name}"
    if find_spec(module) is None:
        if model_drafter(drafter) == name and not _has_library(name):
            return fail(check, f"--drafter {drafter} needs {module}", remedy(module).removeprefix("; run: "))
        return ok(check, f"not installed (for {purpose})")
    ours = [check_package(item, version_of) for item in requirements if item.extra == name]
    for item in ours:
        if item.status != "ok":
            return warn(check, f"{item.check}: {item.detail}", item.fix)
    return ok(check, f"installed (for {purpose})")
