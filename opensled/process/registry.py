"""Lazy registries: plug-ins by name, imported at first use, so a device loads only what it uses."""

import importlib
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from traceback import walk_tb
from typing import Any

from opensled.core.errors import UsageError
from opensled.core.suggestion import did_you_mean
from opensled.process import distribution


@dataclass(frozen=True)
class Registry:
    """`entries` maps a name to "module:attribute"; callers may also pass their own path of that form.

    A name with text after a colon, such as `chain:cacheback,llamacpp`, gives the entry with that text bound as
    its first argument.
    """

    kind: str
    entries: dict[str, str]

    def names(self) -> list[str]:
        return list(self.entries)

    def require(self, name: str, *others: str) -> None:
        """Raises UsageError, which names the choices, for what is no name of it, none of `others`, and no path."""
        if name not in self.entries and name not in others and not name.partition(":")[2]:
            choices = [*others, *self.entries]
            near = did_you_mean(name, choices)
            raise UsageError(f"unknown {self.kind} {name!r}; choose from {', '.join(choices)}{near}")

    def get(self, name: str) -> Any:
        """The object behind `name`; raises UsageError naming the choices."""
        entry, colon, argument = name.partition(":")
        if colon and entry in self.entries:
            return partial(self.get(entry), argument)
        self.require(name)
        module, _, attribute = self.entries.get(name, name).partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise UsageError(f"{self.kind} {name!r} cannot be loaded: {error}{remedy_of(error)}") from error
        except AttributeError as error:
            raise UsageError(f"{self.kind} {name!r}: {module} has no {attribute}") from error


# The extra that installs a missing module; "" = OpenSLED itself, without extras.
_EXTRAS = {
    **dict.fromkeys(
        ("google", "grpc", "numpy", "prometheus_client", "starlette", "tokenizers", "tomli", "uvicorn"), ""
    ),
    "llama_cpp": "llamacpp",
    "xllamacpp": "prebuilt",
    "onnxruntime": "onnx",
    **dict.fromkeys(
        ("torch", "transformers", "safetensors", "huggingface_hub", "httpx", "rich", "gguf", "PIL"), "server"
    ),
    **dict.fromkeys(("onnx", "onnx_ir", "onnxruntime_genai"), "train"),
    "vllm": "vllm",
    "ray": "cluster",
    **dict.fromkeys(("cryptography", "spake2", "zeroconf", "ifaddr"), "home"),
    "matplotlib": "bench",
}
# Of a library that several extras bring: the package that imports it -> that package's own extra.
_OWN = {"cryptography": {"adapt": "adapt", "home": "home", "verify_server": "mtls"}}
# Modules that every server needs, for any engine.
_SERVING = ("grpc_health", "grpc_reflection", "jinja2", "llguidance")
_NEWER_PYTHON = ("server", "serving", "vllm", "train", "cluster", "mtls", "bench")


def remedy_of(error: ImportError) -> str:
    """As `remedy`, of a failed import: of several extras, the one of the package that asked for the library."""
    names = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    packages = [name.partition(".")[0] for name in names]
    own = _OWN.get((error.name or "").partition(".")[0], {})
    return remedy(error.name, next((own[package] for package in reversed(packages) if package in own), ""))


def remedy(module: str | None, wanted: str = "") -> str:
    """The command that installs a missing `module`, by the `wanted` extra if there is one; "" if no extra has it."""
    name = (module or "").partition(".")[0]
    extra = wanted or ("server" if name in _SERVING else _EXTRAS.get(name))
    if extra is None:
        return ""
    if extra == "server" and find_spec("vllm"):  # it has a torch of its own, which that extra would replace
        extra = "serving"
    command = f"; run: {distribution.command(extra)}"
    if extra in _NEWER_PYTHON and sys.version_info < (3, 11):
        return f"{command} (Python >= 3.11)"
    if name in _SERVING:
        return f"{command} (extra llamacpp in its place serves GGUF files only)"
    if name == "llama_cpp":
        return f"{command} (needs a C++ compiler; extra prebuilt in its place needs none, and drafts only)"
    return command
