"""`opensled models`: the models that are here or can be fetched, their paths and their quality."""

import json
from dataclasses import dataclass
from pathlib import Path

from opensled.config import option
from opensled.store import FETCHABLE, known_models, missing_models, model_path


@dataclass(frozen=True)
class ModelListConfig:
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class PathConfig:
    name: str = option("", "name or path of a model", positional=True, metavar="NAME")
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class EvalConfig:
    items_per_task: int = option(40, "how many held-out items of each task", low=1, metavar="N")
    json: bool = option(False, "print JSON")


def list_models(config: ModelListConfig) -> int:
    models = [_describe(name) for name in known_models()]
    fetchable = [{"name": name, "bytes": FETCHABLE[name].bytes} for name in missing_models()]
    if config.json:
        print(json.dumps({"models": models, "fetchable": fetchable}, indent=2))
        return 0
    for model in models:
        print(f"{_size(model)}  {', '.join(model['forms']):28} {model['path']}")
    for model in fetchable:
        print(f"{_size(model)}  {'not here':28} opensled pull {model['name']}")
    return 0


def _size(model: dict) -> str:
    return f"{model['name']:12} {model['bytes'] / 1e6:6.1f} MB"


def _describe(name: str) -> dict:
    folder = model_path(name)
    files = [item for item in sorted(folder.rglob("*")) if item.is_file()]
    return {
        "name": name,
        "path": str(folder),
        "bytes": sum(item.stat().st_size for item in files),
        "forms": sorted({form for item in files if (form := FORMS.get(item.suffix))}),
    }


# Forms of a model's files, by suffix.
FORMS = {".safetensors": "safetensors", ".gguf": "gguf", ".onnx": "onnx"}


def print_path(config: PathConfig) -> int:
    path: Path = model_path(config.name).resolve()
    print(json.dumps({"name": config.name, "path": str(path)}) if config.json else path)
    return 0
