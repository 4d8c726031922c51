"""Writes a draft head: the files that verify_server/drafting/heads/head_file.py reads."""

import json
from dataclasses import asdict

import torch
from safetensors.torch import save_file
from torch import Tensor

from verify_server.drafting.heads.head_file import (
    ABOUT,
    DRAFT_IDS,
    FORMAT,
    GROUP,
    HALF,
    SCALES,
    WEIGHTS,
    HeadFile,
)

LARGEST = 127  # of an int8 weight
# A group's scale is the best of these parts of the one that keeps its largest weight exact.
PARTS = [0.75 + 0.025 * step for step in range(19)]


def save(head: HeadFile, bits: int = 8) -> None:
    """Write both files into its folder; each is there as a whole or not at all.

    With 4 `bits`, rows that are not whole groups still take 8.
    """
    head.folder.mkdir(parents=True, exist_ok=True)
    tensors = {DRAFT_IDS: torch.from_numpy(head.draft_ids)}
    for name, weight in head.head.state_dict().items():
        tensors |= _pack(name, weight.detach().float(), bits)
    about = {
        "format": FORMAT,
        "shape": asdict(head.head.shape),
        "target": head.target,
        "vocabulary": head.vocabulary,
        "config": head.config,
        "training": dict(head.training),
    }
    part = head.folder / f"{WEIGHTS}.part"
    save_file(tensors, part)
    part.chmod(0o644)  # safetensors makes files that only their owner reads
    part.replace(head.folder / WEIGHTS)
    part.write_text(json.dumps(about, indent=2) + "\n")
    part.replace(head.folder / ABOUT)


def _pack(name: str, weight: Tensor, bits: int) -> dict[str, Tensor]:
    if weight.ndim < 2:
        return {name: weight.contiguous()}
    if bits == 4 and weight.shape[-1] % GROUP == 0:
        numbers, found = _fours(weight.unflatten(-1, (-1, GROUP)))
        return {name: numbers, name + SCALES: found}
    scales = weight.abs().amax(-1).clamp_min(torch.finfo(torch.float32).tiny * LARGEST) / LARGEST
    return {name: (weight / scales[:, None]).round().to(torch.int8), name + SCALES: scales}


def _fours(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers [rows, columns / 2] uint8, the first of a pair in the low half, and scales [rows, groups] float16."""
    largest = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    tried = torch.stack([(largest * (part / -HALF)).half() for part in PARTS])
    errors = torch.stack([(_steps(groups, scale) * scale - groups).square().sum(-1) for scale in tried])
    scales = tried.gather(0, errors.argmin(0)[None, ..., None])[0]
    numbers = (_steps(groups, scales) + HALF).to(torch.uint8).flatten(-2)
    return numbers[..., 0::2] | numbers[..., 1::2] << 4, scales[..., 0].contiguous()


def _steps(groups: Tensor, scales: Tensor) -> Tensor:
    """The whole numbers that come nearest; none where all of a group is 0, or too small for a float16."""
    steps = groups / scales.float().where(scales != 0, torch.inf)
    return steps.round().clamp(-HALF, HALF - 1)
