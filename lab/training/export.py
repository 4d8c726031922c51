"""From trained weights to the files under `models/`: Hugging Face folder, GGUF, quantized ONNX.

Every file is written to a scratch folder and moved into place, so that a reader never sees half of one.

The ONNX file has a KV cache and comes from onnxruntime-genai's model builder. Its graph uses `GroupQueryAttention`:
past and present may share one buffer, whose valid length is that of the attention mask. Inputs `input_ids`,
`attention_mask`, `past_key_values.{layer}.{key,value}`; outputs `logits` of every position and
`present.{layer}.{key,value}`.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.shipped.gguf_form import first_number
from lab.shipped.recipes import write_recipe
from lab.shipped.safetensors_form import WeightsFile

from .export_gguf import write_gguf
from .family import DRAFT, END_ID, Recipe


@contextmanager
def moved_into(folder: Path) -> Iterator[Path]:
    """A scratch folder beside `folder`; on success its files replace theirs in `folder`, one by one."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as name:
        scratch = Path(name)
        yield scratch
        for path in sorted(scratch.iterdir()):
            path.chmod(0o644)
            path.replace(folder / path.name)


def export(
    recipe: Recipe, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, models_dir: Path
) -> None:
    folder = models_dir / recipe.name
    with moved_into(folder) as scratch:
        write_hf(model, tokenizer, scratch)
        kind = "Q8_0" if recipe == DRAFT else "F16"  # the target's own precision on disk: the same model
        gguf = scratch / f"{recipe.name}-{kind.lower()}.gguf"
        write_gguf(scratch, gguf, kind)
        if recipe == DRAFT:
            write_onnx(scratch, scratch / f"{recipe.name}-int8.onnx")
        else:
            write_recipe(gguf, first_number(gguf), [WeightsFile("model.safetensors")])


def write_hf(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """float16 on disk for room; the config says float32, so a plain `from_pretrained` computes in that."""
    model.generation_config = GenerationConfig(eos_token_id=END_ID, pad_token_id=END_ID)
    model.to(torch.float16).save_pretrained(folder)
    model.to(torch.float32)
    patch_json(folder / "config.json", dtype="float32")
    write_tokenizer(tokenizer, folder)


def write_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The class by its older name, known to transformers 4 and 5; the template inside, for tools that read one file."""
    tokenizer.save_pretrained(folder)
    patch_json(
        folder / "tokenizer_config.json",
        tokenizer_class="PreTrainedTokenizerFast",
        chat_template=tokenizer.chat_template,
        additional_special_tokens=list(tokenizer.extra_special_tokens),
        extra_special_tokens=None,
        backend=None,
        is_local=None,
        local_files_only=None,
    )


def patch_json(path: Path, **changes: object) -> None:
    """Set keys of a JSON object; None removes one."""
    values = {**json.loads(path.read_text()), **changes}
    kept = {key: value for key, value in values.items() if changes.get(key, value) is not None}
    path.write_text(json.dumps(kept, indent=2) + "\n")


PRECISION = "int8"


def write_onnx(folder: Path, path: Path) -> None:
    """The builder writes weights beside the graph; they are small enough to go into it."""
    with tempfile.TemporaryDirectory() as scratch:
        run_builder(folder, Path(scratch), PRECISION)
        model = onnx.load(Path(scratch) / "model.onnx")
    onnx.save(model, path, save_as_external_data=False)


def run_builder(folder: Path, out: Path, precision: str) -> None:
    """Writes model.onnx and its weights into `out`.

    In a process of its own: the builder is written as a program and keeps global state.
    """
    options = ["-i", str(folder), "-o", str(out), "-p", precision, "-e", "cpu", "-c", str(out / "cache")]
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the ONNX model builder failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
