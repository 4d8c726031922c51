"""The folder of an adapted draft: a Llama as safetensors, the same as GGUF, and `adapted.json`, its manifest.

The GGUF file has keys, tokenizer and template of the draft that it was made from; only its tensors are new.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
from transformers import LlamaForCausalLM

from lab.training.adapting.pair import Pair, sha256
from lab.training.export import write_onnx
from lab.training.export_gguf import add_tensor, gguf_name, permuted
from opensled.models.draft_assembly import assemble_gguf

KIND = "Q8_0"  # of the matrices; smaller kinds lose what a short training adds
MANIFEST = "adapted.json"
TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast"}


@contextmanager
def beside(folder: Path) -> Iterator[Path]:
    """A scratch folder on the same disk, gone afterwards unless it was moved."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".adapt-") as name:
        scratch = Path(name) / folder.name
        scratch.mkdir()
        yield scratch


def write_draft(model: LlamaForCausalLM, pair: Pair, folder: Path, onnx: bool) -> Path:
    """All files but the manifest, into an empty folder; the GGUF file's path."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(pair.draft_text.tokenizer_json)
    template = {"chat_template": pair.draft_text.chat_template} if pair.draft_text.chat_template else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER | template))
    stem = pair.draft_file.stem.removesuffix(f"-{KIND.lower()}")
    path = folder / f"{stem}-adapted-{KIND.lower()}.gguf"
    _write_gguf(model, pair.draft_file, path)
    if onnx:
        write_onnx(folder, folder / f"{stem}-adapted-int8.onnx")
    for each in folder.iterdir():
        each.chmod(0o644)  # safetensors makes files that only their owner reads
    return path


def write_manifest(folder: Path, facts: dict[str, object]) -> None:
    """`facts`, and the sha256 of every file that is there."""
    files = {path.name: sha256(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"files": files, **facts}, indent=2) + "\n")


def _write_gguf(model: LlamaForCausalLM, parent: Path, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        layers, made = Path(scratch) / "layers.gguf", Path(scratch) / path.name
        _write_tensors(model, layers, path.stem)
        assemble_gguf(layers, parent, made)
        made.replace(path)


def _write_tensors(model: LlamaForCausalLM, path: Path, name: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_embedding_length(model.config.hidden_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for key, tensor in model.state_dict().items():
        if key != "lm_head.weight":  # it is the embedding
            array = permuted(key, tensor.detach().numpy().astype(np.float32), model.config)
            add_tensor(writer, gguf_name(key), array, KIND)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
