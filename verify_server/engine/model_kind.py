"""What kind of model a path holds, told by its files alone: before an engine is chosen, and a library is imported."""

from pathlib import Path

from opensled.core.errors import NotFound, UnsupportedModel

SERVED = "served are a GGUF file, a folder with one, or a folder with config.json and *.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def is_gguf(path: Path) -> bool:
    """Whether a model at `path` is GGUF, and not safetensors; raises NotFound or UnsupportedModel for neither."""
    if path.is_file():
        _require_gguf(path)
        return True
    if any(path.glob("*.safetensors")):
        if not (path / "config.json").is_file():
            raise NotFound(
                f"{path} has weights and no config.json: it is not a model folder; {SERVED}", "model"
            )
        return False
    if any(path.glob("*.gguf")):
        return True
    if any(item.suffix in PICKLES for item in path.iterdir()):
        raise UnsupportedModel(
            f"{path} has no .safetensors weights (pickled weights are never opened); convert it once where you trust "
            "it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    raise NotFound(f"{path} holds no model; {SERVED}", "model")


def _require_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) == b"GGUF":
            return
    if path.suffix == ".gguf":
        raise UnsupportedModel(
            f"{path} is not a readable GGUF file: it does not begin with GGUF; download it again"
        )
    if path.suffix == ".safetensors":
        raise UnsupportedModel(f"{path} is a part of a model; give its folder: {path.parent}")
    if path.suffix in PICKLES:
        raise UnsupportedModel(
            f"{path} is a pickle file, which can run code, so it is never opened; {SERVED}"
        )
    raise UnsupportedModel(f"{path} is not a model of a known kind; {SERVED}")
