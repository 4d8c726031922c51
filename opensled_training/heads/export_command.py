"""`opensled export-head`: a draft head of a target in the form that devices load."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import PreTrainedModel

from opensled.drafting.head_form import KINDS
from opensled.errors import NotFound, UnsupportedModel, UsageError
from opensled.registry import remedy
from opensled.store import model_path
from opensled_training.heads.export_config import ExportHeadConfig
from opensled_training.heads.onnx_form import write_onnx
from verify_server.engine.loading import find_weights, load_network
from verify_server.heads.attach import shipped
from verify_server.heads.head_file import HeadFile, config_digest, load


def export_head(config: ExportHeadConfig) -> int:
    """Raises NotFound, UnsupportedModel, UsageError."""
    if find_spec("onnx") is None:
        raise UsageError(f"package onnx is missing{remedy('onnx')}")
    found = load(_folder(config))
    network = load_network(find_weights(str(model_path(config.target))), torch.device("cpu"), torch.float32)
    _check(found, network, config.target)
    out = Path(config.out or f"{Path(config.target).stem}-{found.head.shape.kind}-device")
    written = write_onnx(found, network, out)
    print(f"wrote {written}; draft with it: opensled edge --drafter head --draft-model {written}")
    print(
        "the server must send it hidden states: opensled serve --features (docs/security.md says what they tell)"
    )
    return 0


def _folder(config: ExportHeadConfig) -> Path:
    """Of the head. Raises NotFound."""
    if config.head not in KINDS:
        return Path(config.head)
    folder = shipped(config.target, config.head)
    if not folder.is_dir():
        raise NotFound(
            f"no head {config.head} for {config.target!r} comes with OpenSLED; train one with `opensled train-head`, "
            "and name its folder with --head",
            "head",
        )
    return folder


def _check(found: HeadFile, network: PreTrainedModel, target: str) -> None:
    """Raises UsageError and UnsupportedModel."""
    if found.head.shape.kind not in KINDS:
        raise UsageError(
            f"the head in {found.folder} is of kind {found.head.shape.kind}, a baseline; devices draft with "
            f"{' and '.join(KINDS)}"
        )
    if found.config != config_digest(network.config):
        raise UnsupportedModel(
            f"the head in {found.folder} was trained for {found.target!r}, a target of other sizes than {target!r}"
        )
