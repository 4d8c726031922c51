"""What joint training starts from: a decoder that already writes text.

Every second layer is one of the text model's. The layers between add nothing at first, so the decoder says what the
text model says, and has as many layers again to learn to see with.
"""

import math

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, LlavaForConditionalGeneration

from .canvas import PATCH, SIDE
from .recipe import VisionRecipe

PLACE_SCALE = 0.3


def fresh(recipe: VisionRecipe) -> LlavaForConditionalGeneration:
    """Random weights, the same for the same seed."""
    torch.manual_seed(recipe.seed)
    model = LlavaForConditionalGeneration(recipe.config())
    places = model.model.vision_tower.embeddings.position_embedding
    with torch.no_grad():
        places.weight[1:] = PLACE_SCALE * _places(SIDE // PATCH, recipe.tower_hidden)
    return model


def _places(side: int, size: int) -> Tensor:
    """[patches, size]: waves along both axes. Near patches begin alike, and loud enough to be told apart."""
    speeds = math.pi * torch.logspace(0, -3, size // 4, base=2.0)
    waves = torch.arange(side)[:, None] * speeds
    line = torch.cat([waves.sin(), waves.cos()], dim=1)
    down, across = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.cat([line[down.flatten()], line[across.flatten()]], dim=1)


@torch.no_grad()
def take_over(model: LlavaForConditionalGeneration, text: LlamaForCausalLM) -> None:
    """Give the decoder of `model` the weights of `text`: half its layers, all its embeddings, no more heads."""
    decoder = model.model.language_model
    if len(decoder.layers) != 2 * len(text.model.layers):
        raise ValueError(f"{len(decoder.layers)} layers are not twice {len(text.model.layers)}")
    decoder.embed_tokens.weight[: text.config.vocab_size] = text.model.embed_tokens.weight
    decoder.norm.load_state_dict(text.model.norm.state_dict())
    for layer, source in zip(decoder.layers[::2], text.model.layers, strict=True):
        for name in ("mlp", "input_layernorm", "post_attention_layernorm"):
            getattr(layer, name).load_state_dict(getattr(source, name).state_dict())
        _widen(layer.self_attn, source.self_attn)
    for layer in decoder.layers[1::2]:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _widen(attention: nn.Module, source: nn.Module) -> None:
    """More heads: the source's one KV head stands for each of ours, and what a new query head finds counts nothing."""
    rows = source.q_proj.weight.shape[0]
    attention.q_proj.weight[:rows] = source.q_proj.weight
    attention.o_proj.weight.zero_()
    attention.o_proj.weight[:, :rows] = source.o_proj.weight
    copies = attention.k_proj.weight.shape[0] // source.k_proj.weight.shape[0]
    for name in ("k_proj", "v_proj"):
        getattr(attention, name).weight.copy_(getattr(source, name).weight.repeat(copies, 1))
