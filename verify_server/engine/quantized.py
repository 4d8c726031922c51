"""Quantized weights as `quantization_config` of a config.json states them: what each kind needs, known before a weight
is read. No tensor library is imported here.

transformers computes them, by packages of their authors. What is not in METHODS was not tried, and is refused by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from opensled.errors import UnsupportedModel

Capability = tuple[int, int]  # of a GPU, as NVIDIA counts them
OTHERWISE = "or serve another file of this model: safetensors in bfloat16, or GGUF with --engine llamacpp"


@dataclass(frozen=True)
class Method:
    """One way to store weights in few bits."""

    name: str
    packages: tuple[tuple[str, str], ...]  # the module and the name by which pip knows it
    devices: tuple[str, ...] = ("cpu", "cuda")
    capability: Capability = (0, 0)  # least one of a GPU that computes in it
    widened: bool = False  # to the target's dtype, by transformers, where the device does not compute in it

    def computed_on(self, device: str, capability: Capability) -> bool:
        """Whether the device computes in it; `capability`: that of the GPU."""
        return device in self.devices and (device != "cuda" or capability >= self.capability)


ACCELERATE = ("accelerate", "accelerate")
BITSANDBYTES = (("bitsandbytes", "bitsandbytes"), ACCELERATE)
METHODS = {
    "bitsandbytes_4bit": Method("bitsandbytes in 4 bits", BITSANDBYTES),
    "bitsandbytes_8bit": Method("bitsandbytes in 8 bits", BITSANDBYTES),
    "awq": Method("AWQ", (("gptqmodel", "gptqmodel"), ACCELERATE)),
    "gptq": Method("GPTQ", (("optimum", "optimum"), ("gptqmodel", "gptqmodel"), ACCELERATE)),
    "fp8": Method("FP8 in blocks", (ACCELERATE,), ("cuda",), (8, 9), widened=True),
    "compressed-tensors": Method(
        "compressed-tensors", (("compressed_tensors", "compressed-tensors"), ACCELERATE)
    ),
}


def method_of(folder: Path) -> Method | None:
    """How the weights of a model folder are quantized; None = they are not. Raises UnsupportedModel."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None  # the next reader of the config says what is wrong with it
    text = config.get("text_config") if isinstance(config, dict) else None
    for place in (config, text):
        for key in ("quantization_config", "compression_config"):
            stated = place.get(key) if isinstance(place, dict) else None
            if isinstance(stated, dict):
                return _method(folder, stated)
    return None


def _method(folder: Path, stated: dict[str, object]) -> Method:
    kind = str(stated.get("quant_method", ""))
    if kind == "bitsandbytes":
        kind += "_4bit" if stated.get("load_in_4bit") else "_8bit"
    if kind not in METHODS:
        known = ", ".join(method.name for method in METHODS.values())
        raise UnsupportedModel(
            f"{folder} is quantized by {kind or 'a method that its config.json does not name'}; engine torch serves "
            f"{known}. Convert it, {OTHERWISE}"
        )
    return METHODS[kind]


def require(method: Method, device: str, capability: Capability = (0, 0)) -> None:
    """Raises UnsupportedModel where a package is missing, or the device does not suit."""
    missing = [package for module, package in method.packages if find_spec(module) is None]
    if missing:
        raise UnsupportedModel(
            f"weights quantized by {method.name} need the packages {' and '.join(missing)}: pip install "
            f"{' '.join(missing)}; {OTHERWISE}"
        )
    if not method.computed_on(device, capability) and not method.widened:
        raise UnsupportedModel(
            f"weights quantized by {method.name} cannot be computed on {device} {_needed(method)}; {OTHERWISE}"
        )


def _needed(method: Method) -> str:
    major, minor = method.capability
    gpu = f", a GPU of compute capability {major}.{minor} or later" if major else ""
    return f"(they need {' or '.join(method.devices)}{gpu})"
