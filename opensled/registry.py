"""Lazy registries: plug-ins by name, imported when first asked for, so that a light device stays light."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from opensled.errors import UsageError


@dataclass(frozen=True)
class Registry:
    """`entries` maps a name to "module:attribute"; callers may also pass such a path of their own."""

    kind: str
    entries: dict[str, str]

    def names(self) -> list[str]:
        return list(self.entries)

    def get(self, name: str) -> Any:
        """The object behind `name`; raises UsageError naming the choices."""
        path = self.entries.get(name, name)
        module, _, attribute = path.partition(":")
        if not attribute:
            raise UsageError(f"unknown {self.kind} {name!r}; choose from {', '.join(self.entries)}")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ImportError as error:
            raise UsageError(f"{self.kind} {name!r} cannot be loaded: {error}{remedy(error.name)}") from error
        except AttributeError as error:
            raise UsageError(f"{self.kind} {name!r}: {module} has no {attribute}") from error


# Which extra brings a missing module.
_EXTRAS = {
    "llama_cpp": "llamacpp",
    "onnxruntime": "onnx",
    **dict.fromkeys(
        ("torch", "transformers", "safetensors", "huggingface_hub", "jinja2", "httpx", "rich"), "server"
    ),
    **dict.fromkeys(("grpc_health", "grpc_reflection"), "server"),
    **dict.fromkeys(("gguf", "onnx", "onnx_ir", "onnxruntime_genai"), "train"),
    "ray": "cluster",
    "cryptography": "mtls",
}


def remedy(module: str | None) -> str:
    """What to run when `module` is missing; "" if no extra brings it."""
    extra = _EXTRAS.get((module or "").partition(".")[0])
    if not extra:
        return ""
    needs = " (Python >= 3.11)" if extra == "server" and sys.version_info < (3, 11) else ""
    return f'; run: pip install "opensled[{extra}]"{needs}'
