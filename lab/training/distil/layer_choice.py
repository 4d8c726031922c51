"""Which layers of the target a smaller model keeps: those that it would miss most.

A few layers go at a time, those without which, one by one, what is left stays nearest to the target; then all others
are tried anew. arXiv 2403.03853 scores each layer once, by how much it changes what it reads.
"""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lab.training.distil.objective import losses
from lab.training.distil.self_text import shards
from lab.training.distil.shard_batches import TextBatch, batch_of, read_shard

AT_ONCE = 3  # layers that go before the others are tried anew
SAMPLE_TOKENS = 300  # written by the target, at least
SEED = 3


def sample_of(texts: Path) -> TextBatch:
    """Some texts of the first shards of each name, always the same ones."""
    firsts = {path.name.partition("-")[0]: path for path in reversed(shards(texts))}
    found = [text for path in firsts.values() for text in read_shard(path)]
    random.Random(SEED).shuffle(found)
    chosen, tokens = 0, 0
    while tokens < SAMPLE_TOKENS and chosen < len(found):
        tokens += len(found[chosen].top_ids)
        chosen += 1
    return batch_of(found[:chosen])


@torch.inference_mode()
def kept_layers(target: LlamaForCausalLM, count: int, batch: TextBatch) -> tuple[int, ...]:
    """`count` of the target's layers, in their order. ValueError if it has fewer."""
    kept = list(range(target.config.num_hidden_layers))
    if not 0 < count <= len(kept):
        raise ValueError(f"a model with {len(kept)} layers cannot keep {count} of them")
    while len(kept) > count:
        missed = divergences_without(target, kept, batch)
        gone = sorted(kept, key=missed.__getitem__)[: min(AT_ONCE, len(kept) - count)]
        kept = [number for number in kept if number not in gone]
        told = ", ".join(f"{number} (KL {missed[number]:.3f})" for number in gone)
        print(f"{len(kept)} layers left; gone, each alone: {told}", flush=True)
    return tuple(kept)


@torch.inference_mode()
def divergences_without(target: LlamaForCausalLM, kept: Sequence[int], batch: TextBatch) -> dict[int, float]:
    """Of each layer in `kept`: how far, in nats a position, the other ones alone are from the target."""
    hidden, found = target.model.embed_tokens(batch.ids), {}
    turns = target.model.rotary_emb(hidden, torch.arange(batch.ids.shape[1])[None])
    for place, number in enumerate(kept):
        rest = _through(target, kept[place + 1 :], hidden, turns)
        found[number] = _divergence(target, rest, batch)
        hidden = _through(target, [number], hidden, turns)
    return found


def _through(
    target: LlamaForCausalLM, layers: Sequence[int], hidden: Tensor, turns: tuple[Tensor, Tensor]
) -> Tensor:
    for number in layers:
        hidden = target.model.layers[number](hidden, position_embeddings=turns)
    return hidden


def _divergence(target: LlamaForCausalLM, hidden: Tensor, batch: TextBatch) -> float:
    normed = target.model.norm(hidden)[batch.asked]
    drawn = torch.Generator().manual_seed(SEED)  # the same tokens stand for all others each time
    return float(losses(normed, target.model.embed_tokens.weight, batch.aims, drawn).divergence)
