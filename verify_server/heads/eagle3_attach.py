"""Puts a published EAGLE-3 head beside the target: reads its folder, checks that it fits, and taps the engine."""

from __future__ import annotations

from pathlib import Path

import torch

from opensled.errors import UnsupportedModel, UsageError, VocabularyMismatch
from verify_server.config import ServeConfig
from verify_server.engine.shard_plan import require_whole
from verify_server.engine.torch_engine import TorchEngine
from verify_server.heads.eagle3 import Frequencies
from verify_server.heads.eagle3_drafter import Eagle3Drafter
from verify_server.heads.feature_context import FeatureContext
from verify_server.heads.speculators_file import PublishedHead, load_published
from verify_server.served_model import ServedModel


def eagle3(config: ServeConfig, target: ServedModel) -> Eagle3Drafter:
    """`--drafter eagle3`. Raises UsageError, NotFound, UnsupportedModel, VocabularyMismatch."""
    engine = target.engine
    require_whole(engine, "--drafter eagle3")
    if not isinstance(engine, TorchEngine):
        raise UsageError(
            f"--drafter eagle3 reads hidden states of the target, which engine {engine.info.runtime} does not give; "
            "use --engine torch"
        )
    if not config.draft_model:
        raise UsageError(
            "--drafter eagle3 needs the folder of a head that was published for this target, in the speculators "
            "format: --draft-model FOLDER"
        )
    return _beside(load_published(Path(config.draft_model)), engine, target, config.prefix_cache)


def _beside(found: PublishedHead, engine: TorchEngine, target: ServedModel, shared: bool) -> Eagle3Drafter:
    network = engine.network
    taps = _checked(found, engine, target)
    head = found.head.to(device=network.device, dtype=network.dtype)
    each, scale = found.config.frequencies
    head.frequencies = Frequencies(each.to(network.device), scale)
    table = network.get_input_embeddings().weight
    if head.shape.own_embedding and not torch.equal(head.embed_tokens.weight, table):
        table = head.embed_tokens.weight
    elif head.shape.own_embedding:
        del head.embed_tokens  # the target's is the same
    context = FeatureContext(head, taps, table, engine.info.num_blocks, shared)
    engine.attach(context)
    return Eagle3Drafter(head, context, found.draft_ids.to(network.device))


def _checked(found: PublishedHead, engine: TorchEngine, target: ServedModel) -> tuple[int, ...]:
    """The hidden states that the head reads; that it is of a target of these sizes."""
    text, shape = engine.network.config.get_text_config(decoder=True), found.head.shape
    trained = f", {found.config.verifier!r}" if found.config.verifier else ""
    if shape.target_vocabulary != text.vocab_size:
        raise VocabularyMismatch(
            f"the head in {found.folder} is of a target with {shape.target_vocabulary} ids{trained}; "
            f"{target.model_id!r} has {text.vocab_size}. Take a head that was published for it"
        )
    if shape.size != text.hidden_size:
        raise UnsupportedModel(
            f"the head in {found.folder} is of a target with hidden states of {shape.size}{trained}; "
            f"{target.model_id!r} has {text.hidden_size}. Take a head that was published for it"
        )
    layers = text.num_hidden_layers
    places = found.config.places_in(layers)
    # What leaves the last layer is tapped behind the final norm, which is not what such a head has learned from.
    if not all(0 <= place < layers for place in places) or len(set(places)) < len(places):
        raise UnsupportedModel(
            f"the head in {found.folder} reads the hidden states {list(places)}{trained}; {target.model_id!r} has "
            f"those that enter its layers 0 to {layers - 1}, each once. Take a head that was published for it"
        )
    return places
