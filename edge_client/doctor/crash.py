"""A library of draft models that ended the process it was tried in, and one that was built for another machine."""

from __future__ import annotations

import signal
from importlib import metadata

from edge_client.doctor.finding import Finding, fail
from opensled.models.llama_api import BUILT, PREBUILT
from opensled.process import distribution

ONNX = "onnxruntime"
NATIVE = "-DGGML_NATIVE=ON"
REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
OWN = "the libraries that this drafter uses"


def build_command(library: str, options: str) -> str:
    """The command that builds llama.cpp here; beside the library of a wheel it is installed, and then taken."""
    return f'CMAKE_ARGS="{options}" {distribution.command("llamacpp") if library == PREBUILT else REBUILD}'


def report_crash(library: str, code: int, complaint: str) -> Finding:
    """`library`: the module that was imported or used last, "" = one of the user's drafter."""
    if code == -signal.SIGILL:
        built = f"{_requirement(library) or OWN}: built for another processor: illegal instruction"
        return fail("draft model", built, _for_this_processor(library))
    if code == -signal.SIGKILL:
        cause = complaint or "killed, probably because memory ran out"
        return fail("draft model", cause, "use a smaller --draft-model, or --drafter lookup")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    detail = f"trying it failed ({name}): {complaint or 'no message'}"
    return fail("draft model", detail, f"reinstall the runtime: {_again(library)}")


def _for_this_processor(library: str) -> str:
    """The next step after an illegal instruction."""
    if library in (BUILT, PREBUILT):
        return build_command(library, NATIVE)
    if library == ONNX:
        # Its wheel 1.21.0 for aarch64 alone asks for more than a Pi 4 has (deploy/aarch64_check.sh)
        other = f"take another onnxruntime (a Pi 4 runs 1.23 and newer): {distribution.command('onnx')}"
        return f"{other}; or a GGUF model with --drafter llamacpp: {distribution.command('prebuilt')}"
    return "install that library for this processor, or choose another --drafter"


def _again(library: str) -> str:
    """The command that installs a library anew, in the same version."""
    if library == BUILT:
        return REBUILD
    return (
        f"pip install --force-reinstall --no-cache-dir --no-deps {_requirement(library)}" if library else OWN
    )


def _requirement(library: str) -> str:
    """The library in its version, as pip reads it. The module llama_cpp is of the package llama-cpp-python."""
    try:
        return f"{library}=={metadata.version(library)}" if library else ""
    except metadata.PackageNotFoundError:
        return library
