"""Names of models on a hub: ORG/REPO is a repository, ORG/REPO:QUANT one GGUF model of it.

A GGUF file's name ends with its quantization by custom (llama.cpp, model-Q4_K_M.gguf), and with -00001-of-00003 if the
model is split into several files.
"""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"({_WORD}/{_WORD})(?::([A-Za-z0-9_.-]+))?")
_FILE = re.compile(r"\.(bin|ckpt|gguf|json|onnx|pkl|pt|pth|safetensors|table)$", re.IGNORECASE)
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q|TQ|MXFP|NVFP)\d+(?:_[A-Z0-9]+)*|BF16|FP?16|FP?32)$", re.IGNORECASE
)
# GGUF files that are no model: projectors of images, and statistics for quantizing.
_BESIDE = re.compile(r"mmproj|imatrix", re.IGNORECASE)
# The order of preference where the user named no quantization: small ones near the original first.
PREFERRED = ("Q4_K_M", "Q8_0", "Q5_K_M", "Q6_K", "Q4_K_S", "Q4_0", "Q4_1", "Q5_0", "F16", "BF16")


class HubName(NamedTuple):
    """What a user names on a hub."""

    repository: str  # ORG/REPO
    choice: str = ""  # a quantization or the name of a GGUF file; "" = none named

    def __str__(self) -> str:
        return f"{self.repository}:{self.choice}" if self.choice else self.repository


def parse(name: str) -> HubName | None:
    """None for what cannot be on a hub, such as a path of a file."""
    found = _NAME.fullmatch(name)
    if found is None or _FILE.search(found[1]) or "--" in found[1] or ".." in found[1]:
        return None
    return HubName(found[1], found[2] or "")


class GgufModel(NamedTuple):
    """One model among the files of a repository."""

    quant: str  # such as Q4_K_M, in capitals; without one in its name, the name itself
    files: tuple[str, ...]  # in order; llama.cpp is given the first one

    @property
    def stem(self) -> str:
        """The name without folder, suffix and number of the part."""
        return _SPLIT.sub("", PurePosixPath(self.files[0]).stem)


def gguf_models(names: Iterable[str]) -> list[GgufModel]:
    """The complete GGUF models among files, those that are taken first before others."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix.lower() == ".gguf" and not _BESIDE.search(path.name):
            split = _SPLIT.search(path.stem)
            whole = str(path.with_name(_SPLIT.sub("", path.stem)))
            groups.setdefault((whole, int(split[2]) if split else 1), []).append(name)
    found = [
        GgufModel(_quant(whole), tuple(files))
        for (whole, count), files in groups.items()
        if len(files) == count
    ]
    return sorted(found, key=_rank)


def _quant(whole: str) -> str:
    stem = PurePosixPath(whole).name
    found = _QUANT.search(stem)
    return found[1].upper() if found else stem


def _rank(model: GgufModel) -> int:
    return PREFERRED.index(model.quant) if model.quant in PREFERRED else len(PREFERRED)


def choose_model(models: list[GgufModel], choice: str) -> GgufModel | None:
    """The model of that quantization or name, the first one without a choice; None if there is none."""
    if not choice:
        return models[0] if models else None
    wanted = choice.lower().removesuffix(".gguf")
    return next((model for model in models if wanted in (model.quant.lower(), model.stem.lower())), None)
