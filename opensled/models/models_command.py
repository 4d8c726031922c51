"""`opensled models`: the models that are here or can be fetched, their paths and their quality."""

import json
from dataclasses import dataclass
from pathlib import Path

from opensled.cli.config import option
from opensled.models.model_pairs import PAIRS
from opensled.models.pasted_names import model_name
from opensled.models.store import FETCHABLE, known_models, missing_models, model_files, model_path


@dataclass(frozen=True)
class ModelListConfig:
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class PathConfig:
    name: str = option("", "name or path of a model", positional=True, metavar="NAME", read=model_name)
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class EvalConfig:
    items_per_task: int = option(40, "number of held-out items of each task", low=1, metavar="N")
    json: bool = option(False, "print JSON")


def list_models(config: ModelListConfig) -> int:
    models = [_describe(name) for name in known_models()]
    fetchable = [{"name": name, "bytes": FETCHABLE[name].bytes} for name in missing_models()]
    pairs = [{"name": name, **pair._asdict(), "run_here": False} for name, pair in PAIRS.items()]
    if config.json:
        print(json.dumps({"models": models, "fetchable": fetchable, "pairs": pairs}, indent=2))
        return 0
    width = max(len(model["name"]) for model in (*models, *fetchable))
    for model in models:
        print(f"{_size(model, width)}  {', '.join(model['forms']):24} {model['path']}")
    for model in fetchable:
        print(f"{_size(model, width)}  {'not here':24} opensled pull {model['name']}")
    print("\npairs of a target and a draft model, not run here (opensled pull NAME fetches both):")
    for name, pair in PAIRS.items():
        print(f"{name:9} {pair.target}\n{'':9} {pair.draft}")
    return 0


def _size(model: dict, width: int) -> str:
    return f"{model['name']:{width}} {model['bytes'] / 1e6:8.1f} MB"


def _describe(name: str) -> dict:
    files = model_files(name)
    return {
        "name": name,
        "path": str(model_path(name)),
        "bytes": sum(item.stat().st_size for item in files),
        "forms": sorted({form for item in files if (form := FORMS.get(item.suffix))}),
    }


# Forms of a model's files, by suffix.
FORMS = {".safetensors": "safetensors", ".gguf": "gguf", ".onnx": "onnx"}


def print_path(config: PathConfig) -> int:
    path: Path = model_path(config.name).resolve()
    print(json.dumps({"name": config.name, "path": str(path)}) if config.json else path)
    return 0
