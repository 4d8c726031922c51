"""What kind of model a path holds, told by its files alone: before an engine is chosen, and a library is imported."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from opensled.core.errors import NotFound, UnsupportedModel
from opensled.models.hub_names import MISNAMED, SPLIT, gguf_models

SERVED = "served are a GGUF file, a folder with one, or a folder with config.json and *.safetensors"
UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".download", ".aria2", ".opdownload", ".tmp")
POINTER = b"version https://git-lfs"
INDEX = "model.safetensors.index.json"
OWN = "the model's own GGUF file"
MIN_CONTEXT = 64  # positions of a context: as many are read at once to time a model
# Type or architecture of a GGUF file that writes no text -> what it is, and what to give instead
UNFIT = {
    r"mmproj|clip": ("the projector of a vision model (mmproj)", OWN),
    r"adapter": (
        "an adapter (LoRA), which changes another model",
        "that model, or both merged into one file",
    ),
    r"imatrix": ("statistics for quantizing a model (imatrix)", OWN),
    r"controlvector": ("a control vector for another model", OWN),
    r"vocab": ("a vocabulary without weights", OWN),
    r"eagle\d*|dflash|medusa": ("a draft head of another model", OWN),
    r".*(bert|embedding|rerank)\b.*|t5encoder|pooling": (
        "a model for embeddings or ranking",
        "one that writes text",
    ),
    r"flux|sd(xl|\d).*|bark|kokoro|wan|hyvid|ltxv|lumina2|qwen_image|z_image|hidream|cosmos|aura|whisper|wavtoken.*": (
        "a model of pictures or sound",
        "one that writes text",
    ),
}
# Parts of a GGUF file that nothing joins by itself -> what to do
PARTS = {
    re.compile(r"\.gguf[._-]?((part|split)[._-]?\w+|\d+|a[a-z])$", re.IGNORECASE): (
        "join all parts in their order into one file (cat), and give that"
    ),
    MISNAMED: "rename all parts so that they end in -00001-of-00002.gguf and so on, as llama.cpp looks for them",
}
PICKLED = "pickled weights, which can run code and are never opened"
# Names of files -> the form of a model in them that OpenSLED does not serve; the first that fits counts
_FORMS = {
    r"adapter_config\.json": "an adapter (LoRA), which changes another model",
    r"openvino_.*\.(bin|xml)": "OpenVINO",
    r"ggml-.*\.bin": "GGML (whisper.cpp, or llama.cpp before GGUF)",
    r".*\.(bin|pt|pth|ckpt|pkl)": PICKLED,
    r".*\.(onnx|ort|onnx_data)": "ONNX, which only drafts (--drafter onnx)",
    r".*\.(litertlm|tflite|task|mlmodelc?|mlpackage|pte)": "a model for phones (LiteRT, Core ML, ExecuTorch)",
    r".*\.(h5|keras|msgpack|ot)": "weights for TensorFlow, Flax or Rust",
}
# First bytes of a file that is no GGUF -> what it is
_BEGINNINGS: dict[bytes | tuple[bytes, ...], str] = {
    b"<": "is a web page; download the file itself (/resolve/ in its address, not /blob/)",
    (b"lmgg", b"tjgg", b"fmgg", b"algg"): "is GGML, older than GGUF; download the model as GGUF",
    (b"FROM", b"# Modelfile"): "is Ollama's recipe of a model; give the file or name behind its FROM",
    b'{"schemaVersion"': "is Ollama's list of a model's files; give the blob that it calls image.model",
}
# Ends of the names of other files -> what is said of them
FILES = {
    (".gguf",): "is not a readable GGUF file: it does not begin with GGUF; download it again",
    (".safetensors",): "is a part of a model; give its folder: {parent}",
    UNFINISHED: "is a download that has not ended; let it end, and give the whole file",
    (".imatrix", ".dat"): f"holds statistics for quantizing a model; {SERVED}",
    (".json", ".jinja", ".model", ".txt"): "belongs to a model; give its folder: {parent}",
    (".zip", ".llamafile", ".tar", ".gz", ".xz", ".zst", ".7z"): "is packed; unpack it, and give that",
}


def is_gguf(path: Path) -> bool:
    """Whether a model at `path` is GGUF, and not safetensors; raises NotFound or UnsupportedModel for neither."""
    if why := why_no_model(path):
        raise UnsupportedModel(why)
    if path.is_file():
        return True
    if any(path.glob("*.safetensors")):
        return False
    if any(path.glob("*.gguf")):
        return True
    raise NotFound(f"{path} holds no model; {SERVED}", "model")


def why_no_model(path: Path) -> str:
    """What a file or folder is that cannot be served, in a line with the next step; "" = nothing speaks against it."""
    if path.is_dir():
        return _of_folder(path)
    if why := why_not_here(path):
        return why
    if begins_as_gguf(path):
        return _of_gguf(path)
    said = next((said for marks, said in _BEGINNINGS.items() if begins_as_gguf(path, marks)), "")
    said = said or next((said for ends, said in FILES.items() if path.suffix.lower() in ends), "")
    if form := model_form([path.name]):
        said = said or f"holds {form}; {SERVED}"
    if path.suffix == ".safetensors" and (why := _of_config(path.parent)):
        return why
    return f"{path} {said.format(parent=path.parent) or f'is not a model of a known kind; {SERVED}'}"


def begins_as_gguf(path: Path, mark: bytes | tuple[bytes, ...] = b"GGUF") -> bool:
    """By its content: Ollama keeps such files without a suffix. Another `mark` is looked for instead."""
    with path.open("rb") as file:
        return file.read(32).startswith(mark)


def model_form(names: Iterable[str]) -> str:
    """The form of a model that files tell by their names, of _FORMS; "" = none of them."""
    bare = [name.rpartition("/")[2].lower() for name in names]
    return next((_FORMS[form] for form in _FORMS for name in bare if re.fullmatch(form, name)), "")


def first_part(path: Path) -> Path:
    """The first part of a split model, which llama.cpp is given; the file itself otherwise."""
    return path.with_name(SPLIT.sub(r"-00001-of-\2", path.stem) + path.suffix)


def why_not_here(path: Path) -> str:
    """Why a file is named and not there: a pointer, a link to nothing, a missing part; "" = it is there."""
    folder = path.parent
    if path.is_symlink() and not path.exists():
        return f"{path} links to {path.readlink()}, which is gone; fetch the model again"
    if path.stat().st_size < 1024 and path.read_bytes().startswith(POINTER):
        return f"{path} is a pointer of git-lfs, not the file itself; run in {folder}: git lfs install && git lfs pull"
    if step := next((step for part, step in PARTS.items() if part.search(path.name)), ""):
        return f"{path} is a part of a model; {step}"
    missing = _missing_part(
        path.name, {item.name for item in folder.iterdir()} if SPLIT.search(path.stem) else ()
    )
    return f"{path} is a part, and {missing} is missing beside it; fetch that, too" if missing else ""


def _missing_part(name: str, there: Iterable[str]) -> str:
    """The first part that is not `there` of the model whose part `name` is; "" = none is missing."""
    stem, _, suffix = name.rpartition(".")
    found, there = SPLIT.search(stem), set(there)
    numbers = range(1, int(found[2]) + 1) if found else ()
    parts = (f"{SPLIT.sub('', stem)}-{number:05}-of-{found[2]}.{suffix}" for number in numbers if found)
    return next((part for part in parts if part not in there), "")


def _of_gguf(path: Path) -> str:
    from opensled.models.gguf_file import read_opening  # with numpy, which most commands do without

    keys, tensors = read_opening(path)
    what, instead = _unfit(path, keys, tensors)
    if not what:
        return _out_of_bounds(path, keys, tensors or {})
    beside = (model.files[0] for model in gguf_models(item.name for item in path.parent.iterdir()))
    others = ((name, path.with_name(name)) for name in beside)
    fit = next((name for name, other in others if not _unfit(other, *read_opening(other))[0]), "")
    return f"{path} is {what}, and no language model; give {instead}{f' ({fit})' if fit else ''}"


def _out_of_bounds(path: Path, keys: dict[str, Any], tensors: Mapping[str, Any]) -> str:
    """What in a GGUF file would make llama.cpp end this process (GGML_ASSERT); "" = nothing."""
    architecture = keys.get("general.architecture", "")
    layers, experts, used = (
        keys.get(f"{architecture}.{name}", usual)
        for name, usual in (("block_count", 1), ("expert_count", 0), ("expert_used_count", 0))
    )
    if layers not in range(1, 513):  # LLAMA_MAX_LAYERS in src/llama-hparams.h is 512
        return f"{path} is damaged: it says that it has {layers!r:.40} layers; download it again"
    if used not in range(bool(experts), (experts if isinstance(experts, int) else 0) + 1):
        return f"{path} is damaged: it uses {used!r:.40} of {experts!r:.40} experts; download it again"
    for key, value in keys.items():
        is_low = key == f"{architecture}.context_length" and value in range(1, MIN_CONTEXT)
        if is_low or (key.endswith("_epsilon") and not (isinstance(value, float) and value >= 0)):
            return f"{path} is damaged: it says that {key!r:.80} is {value!r:.40}; download it again"
    for name, info in tensors.items():
        if name.endswith("norm.weight") and (0 in info.shape or info.kind):  # F32 is 0
            return f"{path} is damaged: {name!r:.80} is empty, or not of 32-bit floats; download it again"
    return ""


def _unfit(path: Path, keys: dict[str, Any], tensors: Mapping[str, Any] | None) -> tuple[str, str]:
    """Of UNFIT; "" twice for a model that writes text."""
    architecture = str(keys.get("general.architecture", ""))
    words = [str(keys.get("general.type", "")), architecture]
    own = (f"{architecture}.", "tokenizer.")
    if architecture and tensors and not any(key.startswith(own) for key in keys):
        words.append("flux")  # as programs for pictures write it; llama.cpp's models tell of their layers
    if tensors == {} and "split.count" not in keys and not SPLIT.search(path.stem):
        words.append("vocab")
    if keys.get(f"{architecture}.pooling_type"):
        words.append("pooling")
    kinds = (kind for word in words for kind in UNFIT if re.fullmatch(kind, word, re.IGNORECASE))
    return UNFIT[found] if (found := next(kinds, None)) else ("", "")


def _of_folder(folder: Path) -> str:
    names = {item.name for item in folder.iterdir()}
    weights = [folder / name for name in sorted(names) if name.endswith((".safetensors", ".gguf"))]
    text = [folder / name for name in sorted(names) if name.endswith((".json", ".model", ".jinja"))]
    if all(item.suffix == ".gguf" for item in weights) and any(not why_not_here(item) for item in weights):
        weights = []
    if why := next(filter(None, map(why_not_here, [*weights, *text])), ""):
        return why
    return _of_config(folder) or _of_weights(folder, names)


def _of_config(folder: Path) -> str:
    names = {item.name for item in folder.iterdir()}
    return why_papers(folder, names, lambda name: read_papers(folder / name))


def why_papers(folder: object, names: Set[str], read: Callable[[str], dict[str, Any]]) -> str:
    """Why a model is none to serve, by the papers beside its weights, which `read` gives; "" = they do not tell."""
    config = read("config.json")
    kinds = config.get("architectures")
    quantized = config.get("quantization_config") or {}
    method = quantized.get("quant_method") if isinstance(quantized, dict) else None
    weights = [name for name in names if re.search(r"\.(safetensors|gguf)$|^pytorch_model", name)]
    if "adapter_config.json" in names and all(name.startswith("adapter_") for name in weights):
        base = read("adapter_config.json").get("base_model_name_or_path") or "its model"
        return f"{folder} is an adapter (LoRA) of {base}; give that model, or both merged (merge_and_unload)"
    if names & {"modules.json", "1_Pooling", "config_sentence_transformers.json"} or any(
        re.search(r"(Classification|MaskedLM|QuestionAnswering|BertModel|RobertaModel)$", str(kind))
        for kind in (kinds if isinstance(kinds, list) else ())
    ):
        return f"{folder} is a model for embeddings, ranking or sorting; give one that writes text"
    if not config and any(name.startswith("consolidated.") for name in names):
        return f"{folder} is in Mistral's or Meta's own form; give its GGUF file, or the model with a config.json"
    if config.get("is_encoder_decoder"):
        return f"{folder} has an encoder beside its decoder, as for translating or speech; give one without"
    if "model_index.json" in names:
        return f"{folder} is a model of pictures or sound, for diffusers; give one that writes text"
    if isinstance(config.get("quantization"), dict) and not method:
        return f"{folder} is quantized for MLX on a Mac; give its original, or a GGUF file of it"
    if str(method).startswith("exl"):
        return f"{folder} is quantized for ExLlama ({method}); give its original, or a GGUF file of it"
    return ""


def _of_weights(folder: Path, names: set[str]) -> str:
    safe = sorted(name for name in names if name.endswith(".safetensors"))
    told = read_papers(folder / INDEX).get("weight_map")
    missing = sorted(set(map(str, told.values())) - names) if isinstance(told, dict) else []
    if missing:
        return f"{folder} is not whole: {missing[0]}, which {INDEX} names, is missing; fetch that, too"
    if safe and "config.json" not in names:
        return f"{folder} has weights and no config.json: it is not a model folder; {SERVED}"
    if safe and all(SPLIT.search(name.rpartition(".")[0]) for name in safe) and INDEX not in names:
        return f"{folder} has the parts of a model and no {INDEX}; fetch that, too"
    if safe or any(name.endswith(".gguf") for name in names):
        return ""
    form = model_form(item.name for item in folder.rglob("*"))
    if form == PICKLED:
        return (
            f"{folder} has no .safetensors weights (pickled weights are never opened); convert it once where you trust "
            "it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    if why := next(
        filter(None, (why_not_here(folder / name) for name in sorted(names) if ".gguf" in name)), ""
    ):
        return why
    if unfinished := next((item for item in folder.rglob("*") if item.suffix in UNFINISHED), None):
        return f"{unfinished} {FILES[UNFINISHED]}"
    files = (*folder.rglob("*.gguf"), *folder.rglob("*.safetensors"))
    if inside := sorted({str(file.parent) for file in files}):
        return f"{folder} has its models in folders of their own; give {' or '.join(inside[:3])}"
    if form:
        return f"{folder} holds {form}; {SERVED}"
    if names & {"config.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"}:
        return f"{folder} has no weights, only what belongs to them; fetch its *.safetensors, too"
    return (
        "" if names else f"{folder} is empty (Docker makes such a folder for a missing file); check the path"
    )


def read_papers(path: Path) -> dict[str, Any]:
    """A JSON object; empty where it cannot be read, which others tell better."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
