"""A library of draft models that ended the process it was tried in, and one that was built for another machine."""

from __future__ import annotations

import signal

from edge_client.doctor.finding import Finding, fail
from edge_client.doctor.install import version_of
from opensled.models.llama_api import BUILT, PREBUILT
from opensled.process import distribution

ONNX = "onnxruntime"
# Its wheel for aarch64 asks for more than a Cortex-A72 has; those around it run there (deploy/aarch64_check.sh).
TOO_NEW_FOR_A_PI_4 = "1.21.0"
NATIVE = "-DGGML_NATIVE=ON"
REBUILD = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"


def build_command(library: str, options: str) -> str:
    """The command that builds llama.cpp here; beside the library of a wheel it is installed, and then taken."""
    return f'CMAKE_ARGS="{options}" {distribution.command("llamacpp") if library == PREBUILT else REBUILD}'


def report_crash(library: str, code: int, complaint: str) -> Finding:
    """`library`: the module that was imported or used last, "" = one of the user's drafter."""
    if code == -signal.SIGILL:
        return fail("draft model", *_illegal_instruction(library))
    if code == -signal.SIGKILL:
        cause = complaint or "killed, probably because memory ran out"
        return fail("draft model", cause, "use a smaller --draft-model, or --drafter lookup")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    detail = f"trying it failed ({name}): {complaint or 'no message'}"
    return fail("draft model", detail, f"reinstall the runtime: {_again(library)}")


def _illegal_instruction(library: str) -> tuple[str, str]:
    """The cause and what helps."""
    if library == BUILT:
        cause = "llama.cpp was built for another processor"
        remedy = build_command(library, NATIVE)
    elif library == PREBUILT:
        cause = f"the llama.cpp in {_named(library)} was built for newer processors"
        remedy = build_command(library, NATIVE)
    elif library == ONNX:
        cause = f"{_named(library)} was built for newer processors"
        remedy = f"draft with a GGUF model: --drafter llamacpp; {distribution.command('prebuilt')}"
        if version_of(library) == TOO_NEW_FOR_A_PI_4:
            remedy = f"take onnxruntime 1.23 or newer, which run here: {distribution.command('onnx')}"
    else:
        cause = "a library that this drafter uses was built for another processor"
        remedy = "install that library for this processor, or choose another --drafter"
    return f"{cause}: illegal instruction", remedy


def _named(library: str) -> str:
    return f"{library} {version_of(library) or ''}".rstrip()


def _again(library: str) -> str:
    """The command that installs a library anew, in the same version."""
    if library == BUILT:
        return REBUILD
    if not library:
        return "the libraries that this drafter uses"
    version = version_of(library)
    return f"pip install --force-reinstall --no-cache-dir --no-deps {library}{(version and f'=={version}') or ''}"
