"""A published head as a folder: `config.json`, and its tensors in files of the safetensors format.

`d2t` holds offsets: draft id i stands for the target's id i + d2t[i]; `t2d` says of each of the target's ids whether it
is among those. Both are missing where a head drafts all ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from opensled.errors import NotFound, UnsupportedModel, first_line
from verify_server.heads.eagle3 import Eagle3Head, Eagle3Shape
from verify_server.heads.speculators_config import AGAIN, SpeculatorsConfig, read_config

EMBEDDING, OFFSETS, DRAFTED = "embed_tokens.weight", "d2t", "t2d"
RAW = "midlayer."  # how raw EAGLE-3 files call the layer
# What training keeps beside a head, and older files state: not of use here
LEFT_OUT = ("verifier_lm_head.weight", "verifier_norm.weight", "layers.0.self_attn.rotary_emb.inv_freq")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class PublishedHead:
    """A head in evaluation mode, in the precision of its files."""

    folder: Path
    config: SpeculatorsConfig
    head: Eagle3Head
    draft_ids: Tensor  # int64 [V]: the target's id of each id that the head can draft


def load_published(folder: Path) -> PublishedHead:
    """Raises NotFound and UnsupportedModel."""
    config = read_config(folder)
    tensors = _tensors(folder)
    try:
        ids = _draft_ids(tensors.pop(OFFSETS, None), tensors.pop(DRAFTED, None), config.shape)
        head = _head(config, tensors)
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UnsupportedModel(
            f"the tensors in {folder} do not fit its config.json: {reason}; {AGAIN}"
        ) from error
    return PublishedHead(folder, config, head, ids)


def _tensors(folder: Path) -> dict[str, Tensor]:
    """Of all files together."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise NotFound(f"the head in {folder} lacks its weights: it has no *.safetensors; {AGAIN}", "head")
    found: dict[str, Tensor] = {}
    for path in paths:
        try:
            own = load_file(path)
        except (SafetensorError, OSError) as error:
            raise UnsupportedModel(f"{path} cannot be read: {first_line(error)}; {AGAIN}") from error
        if twice := found.keys() & own.keys():
            raise UnsupportedModel(f"{path} has {min(twice)}, and so has another file beside it; {AGAIN}")
        found |= own
    return found


def _head(config: SpeculatorsConfig, tensors: Mapping[str, Tensor]) -> Eagle3Head:
    """Raises RuntimeError and ValueError."""
    if raw := [name for name in tensors if name.startswith(RAW)]:
        raise ValueError(
            f"{min(raw)} is a name of raw EAGLE-3 files; convert the head with `speculators convert --algorithm eagle3`"
        )
    # Whatever sizes a file claims, they take no memory: weights come from what is really there.
    with torch.device("meta"):
        head = Eagle3Head(replace(config.shape, own_embedding=EMBEDDING in tensors))
    kept = {name: _weight(name, tensor) for name, tensor in tensors.items() if name not in LEFT_OUT}
    head.load_state_dict(kept, assign=True)
    head.frequencies = config.frequencies
    return head.eval().requires_grad_(False)


def _weight(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in FLOATS:
        raise ValueError(f"{name} is {tensor.dtype}; known are float32, bfloat16 and float16")
    if not tensor.isfinite().all():
        raise ValueError(f"not all numbers of {name} are finite")
    # Copied: what is read here lies in the file, which may change under a running server.
    return tensor.clone()


def _draft_ids(offsets: Tensor | None, drafted: Tensor | None, shape: Eagle3Shape) -> Tensor:
    """Raises ValueError."""
    own = torch.arange(shape.vocabulary)
    if offsets is None:
        if shape.vocabulary != shape.target_vocabulary:
            raise ValueError(f"d2t is missing, which says what {shape.vocabulary} ids the head drafts")
        return own
    if offsets.shape != own.shape or offsets.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"d2t is {offsets.dtype} {list(offsets.shape)} for {shape.vocabulary} ids")
    wide = offsets.to(torch.int64)
    # Compared before they are added: a sum of what a file holds may be too large for a number.
    outside = (wide < -own) | (wide >= shape.target_vocabulary - own)
    if outside.any():
        first = int(outside.nonzero()[0])
        raise ValueError(
            f"d2t leads draft id {first} beyond the {shape.target_vocabulary} ids of its target, by {int(wide[first])}"
        )
    ids = own + wide
    if (ids[1:] <= ids[:-1]).any():
        raise ValueError("the ids to which d2t leads are not ascending")
    if drafted is not None:
        _check_drafted(drafted, ids, shape)
    return ids


def _check_drafted(drafted: Tensor, ids: Tensor, shape: Eagle3Shape) -> None:
    """That `t2d` says the same as `d2t`."""
    if drafted.shape != (shape.target_vocabulary,) or drafted.dtype != torch.bool:
        raise ValueError(f"t2d is {drafted.dtype} {list(drafted.shape)} for {shape.target_vocabulary} ids")
    if not torch.equal(drafted.nonzero().flatten(), ids):
        raise ValueError("t2d and d2t do not name the same ids")
