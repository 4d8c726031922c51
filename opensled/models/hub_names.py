"""Names of models on a hub: ORG/REPO is a repository, ORG/REPO:QUANT one GGUF model of it.

A GGUF file's name, or its folder's, has its quantization somewhere (model-Q4_K_M.gguf, q4-k-m, Q4_K_M-imat), and
-00001-of-00003 at its end if the model is split into several files.
"""

import os
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

HUB = "https://huggingface.co"
_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"({_WORD}/{_WORD})(?::([A-Za-z0-9_.,+()/ -]+))?")
_FILE = re.compile(r"\.(bin|ckpt|gguf|json|onnx|pkl|pt|pth|safetensors|table)$", re.IGNORECASE)
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})$")
MISNAMED = re.compile(r"-\d{5}-of-\d{5}[^/]+\.gguf$", re.IGNORECASE)  # of a part that llama.cpp does not find
_WIDE = r"(?:BF|FP?)(?:16|32|64)"
QUANT = re.compile(
    rf"(?<![a-z0-9])(?:(UD)[-_.])?(?:I1[-_.])?({_WIDE}|(?:I?Q|TQ|MXFP|NVFP|FP)\d+"
    r"(?:[-_.]?(?:K|K[STLV]|KSS|XXS|XS|S|M|L|XL|XXL|NL|P|BN|R[48]|MOE)|[-_.][01](?:_[48]_[48])?)*)(?![a-z0-9])",
    re.IGNORECASE,
)
_STATISTICS = re.compile(r"^imatrix|[._-]imatrix$", re.IGNORECASE)  # for quantizing
_PROJECTOR = re.compile(r"mm[-_]?proj|projector", re.IGNORECASE)  # of images
# In a file's name, where not all files of its repository have it: not the model that the repository is named for
_OTHER = re.compile(
    r"mtp|nextn|eagle\d*|draft(er)?|medusa|hydra|dflash|spec(ulat\w*)?|assistant|ablit\w*|obliterated|uncensored|heretic"
    r"|lora|adapters?|vocab|tokenizer|cvector|control|vae|tts|embeddings?|vision|audio|encoder|calibration"
)
# In a file's name, and tells nothing of the model itself
_PLAIN = re.compile(r"|gguf|ggml|hf|imat(rix)?|i1|ud|v\d+|it|instruct|chat|new|fixed|split|\d+")
# The order of preference where the user named no quantization: small ones near the original first ("?": not told)
BITS = ("4", "5", "6", "8", "?", "3", "16", "2", "1")
# Kinds of one of BITS
KINDS = ("KM", "KXL", "KL", "KS", "K", "XS", "NL", "0", "1", "", "MOE", "M", "S", "XXS", "KP")


class HubName(NamedTuple):
    """What a user names on a hub."""

    repository: str  # ORG/REPO
    choice: str = ""  # a quantization or the name of a GGUF file; "" = none named

    def __str__(self) -> str:
        return f"{self.repository}:{self.choice}" if self.choice else self.repository


def parse(name: str) -> HubName | None:
    """None for what cannot be on a hub, such as a path of a file."""
    found = _NAME.fullmatch(name)
    if found is None or _FILE.search(found[1]) or "--" in found[1] or ".." in name:
        return None
    return HubName(found[1], "" if (found[2] or "").lower() == "latest" else found[2] or "")


class GgufModel(NamedTuple):
    """One model among the files of a repository."""

    quant: str  # such as Q4_K_M, in capitals; without one in its name, the name itself
    files: tuple[str, ...]  # in order; llama.cpp is given the first one

    @property
    def whole(self) -> str:
        """The path without suffix and number of the part."""
        return SPLIT.sub("", self.files[0].rpartition(".")[0])

    @property
    def stem(self) -> str:
        return PurePosixPath(self.whole).name

    @property
    def words(self) -> frozenset[str]:
        """Those of its path that tell models apart."""
        words = re.split(r"[^a-z0-9]+", QUANT.sub(" ", self.whole).lower())
        return frozenset(word for word in words if not _PLAIN.fullmatch(word))


def gguf_models(names: Iterable[str]) -> list[GgufModel]:
    """The complete GGUF models among files, those that are taken first before others."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in sorted(names):
        stem, _, suffix = name.rpartition(".")
        is_gguf = suffix.lower() == "gguf" and not MISNAMED.search(name)
        if is_gguf and not _is_beside(PurePosixPath(stem).name):
            split = SPLIT.search(stem)
            groups.setdefault((SPLIT.sub("", stem), int(split[2]) if split else 1), []).append(name)
    whole = [
        GgufModel(_quant(stem), tuple(files))
        for (stem, count), files in groups.items()
        if len(files) == count
    ]
    return _ranked(whole)


def _is_beside(stem: str) -> bool:
    """Whether a GGUF file's name is that of no model."""
    if _STATISTICS.search(stem):
        return not QUANT.search(stem) or not stem.lower().endswith(("-imatrix", "_imatrix"))
    return bool(_PROJECTOR.search(stem)) or ("imatrix" in stem.lower() and not QUANT.search(stem))


def _quant(whole: str) -> str:
    """The last quantization in a path, of its last part that has one; widths of 16 bits and more count least."""
    for part in reversed(PurePosixPath(whole).parts):
        found = [f"{each[0]}-{each[1]}".lstrip("-").upper() for each in QUANT.findall(part)]
        if found:
            return max(reversed(found), key=lambda quant: not re.fullmatch(_WIDE, quant))
    return PurePosixPath(whole).name


def _ranked(models: list[GgufModel]) -> list[GgufModel]:
    """Variants, named as such, come last; a file comes before one whose name has all of its words and more."""
    shared = frozenset.intersection(*[model.words for model in models]) if models else frozenset()
    other = {model: sorted(filter(_OTHER.fullmatch, model.words - shared)) for model in models}

    def rank(model: GgufModel) -> tuple[object, ...]:
        extra = sum(each.words < model.words for each in models)
        bits, kind = _worth(model.quant)
        is_last = bits >= BITS.index("16")
        return len(other[model]), is_last, extra, bits, kind, len(model.words), model.files

    labels: dict[str, GgufModel] = {}  # of one quantization, those behind the first are called by their paths
    for model in sorted(models, key=rank):
        label = "-".join([*map(str.upper, other[model]), model.quant])
        labels.setdefault(model.whole if label in labels else label, model)
    return [model._replace(quant=label) for label, model in labels.items()]


def _worth(quant: str) -> tuple[int, int]:
    """The places in BITS and KINDS; what llama.cpp itself does not read is behind all."""
    found = QUANT.fullmatch(quant)
    number = re.findall(r"\d+", found[2])[0] if found else "?"
    kind = _plain(found[2].partition(number)[2]).upper() if found else ""
    number = number if len(number) == 1 else "16"
    if _is_foreign(quant) or number not in BITS or kind not in KINDS:
        return len(BITS), 0
    return BITS.index(number), KINDS.index(kind)


def _is_foreign(quant: str) -> bool:
    """Whether llama.cpp does not read it: types of ik_llama.cpp, and former ones of some processors."""
    return bool(re.search(r"(?<![a-z0-9])(iq\d+[-_.]?k|q4[-_.]0[-_.][48]_[48]|\w+_r[48]$)", quant.lower()))


def _plain(quant: str) -> str:
    """For comparing: letters and digits alone."""
    return re.sub(r"[^a-z0-9]|(?<=^f)p(?=16|32|64)", "", quant.lower())


def choose_model(models: list[GgufModel], choice: str) -> GgufModel | None:
    """The model of that quantization or name, without a choice the first that llama.cpp reads; None if none is.

    `Q4` is the first one of 4 bits, and words beside a quantization have to be in the file's name.
    """
    if not choice:
        return next((model for model in models if not _is_foreign(model.quant)), None)
    whole = SPLIT.sub("", re.sub(r"\.gguf$", "", choice.lower()))
    quant = _plain(re.sub(r"^(?:int)?(\d)(?:-?bits?)?$", r"q\1", whole))
    bare, words = _plain(_quant(choice)), GgufModel("", (f"{whole}.gguf",)).words
    ways = (
        lambda model: whole in (model.whole.lower(), model.stem.lower()),
        lambda model: quant == _plain(model.quant),
        lambda model: bare == _plain(model.quant).removeprefix("ud") and not words - model.words,
        lambda model: bare == _plain(_quant(model.whole)) and words and not words - model.words,
        lambda model: re.fullmatch(r"[a-z]+\dk?", quant) and _plain(model.quant).startswith(quant),
    )
    return next((model for is_it in ways for model in models if is_it(model)), None)


def hub_variable(name: str) -> str:
    """A variable's value without the blanks and quotes that files of variables leave around it; "" = not set."""
    return os.environ.get(name, "").strip(" \t\r\n\"'")


def hub_endpoint() -> str:
    """The address of the hub, without a slash at its end: HF_ENDPOINT names a mirror, with or without https://."""
    named = (hub_variable("HF_ENDPOINT") or HUB).rstrip("/")
    return named if "://" in named else f"https://{named}"
