"""A Hugging Face folder as one quantized ONNX file with a KV cache, by onnxruntime-genai's model builder.

The graph uses `GroupQueryAttention`: past and present may share one buffer, whose valid length is that of the
attention mask. Inputs `input_ids`, `attention_mask`, `past_key_values.{layer}.{key,value}`; outputs `logits` of
every position and `present.{layer}.{key,value}`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

PRECISION = "int8"


def write_onnx(folder: Path, path: Path) -> None:
    """The builder writes weights beside the graph; they are small enough to go into it."""
    with tempfile.TemporaryDirectory() as scratch:
        _run_builder(folder, Path(scratch))
        model = onnx.load(Path(scratch) / "model.onnx")
    onnx.save(model, path, save_as_external_data=False)


def _run_builder(folder: Path, out: Path) -> None:
    """In a process of its own: the builder is written as a program and keeps global state."""
    options = ["-i", str(folder), "-o", str(out), "-p", PRECISION, "-e", "cpu", "-c", str(out / "cache")]
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the ONNX model builder failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
