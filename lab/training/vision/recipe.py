"""Sizes and training of `tiny-vision`. Everything that decides what comes out stands here."""

import math
from dataclasses import dataclass

from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

from ..family import END_ID
from ..train_tokenizer import CONTEXT
from .canvas import PATCH, PATCHES, SIDE
from .tokens import IMAGE_ID, PADDED_VOCAB


@dataclass(frozen=True)
class Plan:
    """AdamW along a cosine: `steps` of them, from `peak` to zero, with a few to warm up."""

    steps: int
    peak: float
    warmup: int = 100

    def lr_at(self, step: int) -> float:
        fall = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.peak * fall * min(1.0, (step + 1) / self.warmup)


@dataclass(frozen=True)
class VisionRecipe:
    """The model, the plan of its tower, and that of the whole; `seed` draws weights, scenes and batches."""

    name: str = "tiny-vision"
    seed: int = 11
    tower_hidden: int = 128
    tower_layers: int = 3
    tower_heads: int = 4
    hidden: int = 192
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 384
    tower: Plan = Plan(600, 2e-3)
    tower_pictures: int = 32
    joint: Plan = Plan(1620, 1.8e-3)
    pictures: int = 6
    texts: int = 1
    length: int = 256
    dialogue_share: float = 0.25
    text_tokens: int = 500_000

    def config(self) -> LlavaConfig:
        return LlavaConfig(
            vision_config=self._tower_config(),
            text_config=self._text_config(),
            image_token_index=IMAGE_ID,
            image_seq_length=PATCHES,
            vision_feature_layer=-1,
            vision_feature_select_strategy="default",
            tie_word_embeddings=True,
            eos_token_id=END_ID,
            pad_token_id=END_ID,
        )

    def _tower_config(self) -> CLIPVisionConfig:
        return CLIPVisionConfig(
            hidden_size=self.tower_hidden,
            intermediate_size=4 * self.tower_hidden,
            num_hidden_layers=self.tower_layers,
            num_attention_heads=self.tower_heads,
            projection_dim=self.tower_hidden,
            image_size=SIDE,
            patch_size=PATCH,
            hidden_act="gelu",
        )

    def _text_config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=PADDED_VOCAB,
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            rope_theta=10_000.0,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END_ID,
            pad_token_id=END_ID,
        )


VISION = VisionRecipe()
