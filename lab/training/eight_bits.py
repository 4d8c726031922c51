"""The weights of a model as whole numbers of 8 bits: half the room of float16 (lab/shipped/safetensors_form.py)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from lab.shipped.recipes import write_recipe
from lab.shipped.safetensors_form import EIGHTS, SCALES, WeightsFile, eights, read_header

WEIGHTS, NUMBERS = "model.safetensors", "model.int8"


def round_weights(folder: Path) -> None:
    """Round the weights of a Hugging Face folder; NUMBERS with a recipe is what needs to be shipped of them."""
    whole = folder / WEIGHTS
    tensors = dict(pair for name, values in load_file(whole).items() for pair in _rounded(name, values))
    save_file(tensors, folder / NUMBERS)
    (folder / NUMBERS).chmod(0o644)  # safetensors makes files that only their owner reads
    write_recipe(whole, read_header(whole.read_bytes())[1], [WeightsFile(NUMBERS)])


def _rounded(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Vectors, and what has no whole groups, stay as they are."""
    if values.ndim < 2 or values.shape[-1] % EIGHTS:
        yield name, values
        return
    numbers, scales = eights(values.reshape(-1, EIGHTS))
    yield name, numbers.reshape(values.shape)
    yield name + SCALES, scales.reshape(*values.shape[:-1], -1)
