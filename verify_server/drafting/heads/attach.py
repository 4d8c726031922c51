"""Loads a draft head beside the target: finds its files, checks that they belong to it, and taps the engine."""

from __future__ import annotations

from pathlib import Path

import torch

from opensled.core.errors import NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.models.store import bundled_folder, is_name
from scheduler.estimates import GUESS, Forecast
from verify_server.drafting.heads.base import HeadShape
from verify_server.drafting.heads.context import HeadContext
from verify_server.drafting.heads.drafter import FrameDrafter, HeadDrafter, PlaceDrafter
from verify_server.drafting.heads.head_file import HeadFile, config_digest, load
from verify_server.drafting.heads.target_parts import TargetParts
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel


def specformer(config: ServeConfig, target: ServedModel) -> HeadDrafter:
    """`--server-drafter specformer`. Raises UsageError, NotFound, UnsupportedModel, VocabularyMismatch."""
    return _load("specformer", PlaceDrafter, config, target)


def ctc(config: ServeConfig, target: ServedModel) -> HeadDrafter:
    """`--server-drafter ctc`; see `specformer`."""
    return _load("ctc", FrameDrafter, config, target)


def shipped_folder(target: str, kind: str) -> Path:
    """The folder of the head that comes with OpenSLED for a target; it need not be there."""
    return bundled_folder() / "_heads" / f"{target}-{kind}"


def _load(kind: str, drafter: type[HeadDrafter], config: ServeConfig, target: ServedModel) -> HeadDrafter:
    engine = target.engine
    if not isinstance(engine, TorchEngine):
        raise UsageError(
            f"--server-drafter {kind} reads hidden states of the target, which engine {engine.info.runtime} does not "
            "give; use --engine torch"
        )
    found = load(_folder(kind, config))
    _check(found, kind, engine, target)
    network = engine.network
    head = found.head.to(device=network.device, dtype=network.dtype)
    context = HeadContext(head, engine.info.num_blocks)
    parts = TargetParts(network, torch.as_tensor(found.draft_ids, dtype=torch.int64))
    engine.attach(context)
    made = drafter(head, context, parts)
    made.guess = _forecast_of(found)
    return made


def _forecast_of(found: HeadFile) -> Forecast:
    """What the head's chains have shown along held-out answers: of their tokens a step, as if all places were alike."""
    try:
        gained = float(found.training["rounded_tokens_per_step"]["chain"]) - 1
    except (KeyError, TypeError, ValueError):
        return GUESS
    # first + first ** 2 + ... = gained; a number that no head can have says nothing.
    chance = gained / (1 + gained) if gained > 0 else GUESS.first
    return GUESS._replace(first=chance, later=chance) if chance < 1 else GUESS


def _folder(kind: str, config: ServeConfig) -> Path:
    if config.draft_model:
        return Path(config.draft_model)
    folder = shipped_folder(config.model, kind)
    if is_name(config.model) and folder.is_dir():
        return folder
    raise NotFound(
        f"no head {kind} for {config.model!r} comes with OpenSLED; train one with `opensled train-head`, and name its "
        "folder with --draft-model"
    )


def _check(found: HeadFile, kind: str, engine: TorchEngine, target: ServedModel) -> None:
    """That the head is of this kind, and of this target."""
    shape: HeadShape = found.head.shape
    text = engine.network.config.get_text_config(decoder=True)
    if shape.kind != kind:
        raise UsageError(
            f"the head in {found.folder} is a {shape.kind}; serve it with --server-drafter {shape.kind}"
        )
    if found.vocabulary != target.text.fingerprint:
        raise VocabularyMismatch(
            f"the head in {found.folder} has another vocabulary than the target {target.model_id!r}; take a head that "
            "was trained for it"
        )
    if found.config != config_digest(text):
        raise UnsupportedModel(
            f"the head in {found.folder} was trained for {found.target!r}, a target of other sizes than "
            f"{target.model_id!r}; train one with `opensled train-head`"
        )
    if shape.size != text.hidden_size or max(shape.taps) > text.num_hidden_layers:
        raise UnsupportedModel(
            f"the head in {found.folder} is of a target with hidden states of {shape.size} and at least "
            f"{max(shape.taps)} layers; {target.model_id!r} has {text.hidden_size} and {text.num_hidden_layers}"
        )
    if found.draft_ids[-1] >= text.vocab_size:
        raise UnsupportedModel(
            f"the head in {found.folder} drafts id {found.draft_ids[-1]}; {target.model_id!r} has {text.vocab_size} ids"
        )
