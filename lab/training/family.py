"""The members of the family: sizes and training recipes. Everything that decides what comes out stands here."""

from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig

from .train_tokenizer import CONTEXT, SPECIAL_TOKENS, VOCAB_SIZE

MODELS_DIR = Path(__file__).resolve().parents[2] / "models"
END_ID = 0
TOKENIZER_SEED = 1
CORPUS_SEED = 2
CHAT_TOKENS = 12_000_000


@dataclass(frozen=True)
class Recipe:
    """One member. All sizes are multiples of 32, the block of GGUF's Q8_0; `seed` draws weights and batches.

    Training goes `steps` with short rows, then `long_steps` with rows of the whole context, without which a model
    is lost past 256 tokens. The long rows cost skill in the short tasks, so the member is the mean of the weights
    before and after them, the latter with `long_weight` (WiSE-FT, arXiv 2109.01903).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    steps: int
    seed: int
    rows: int = 18
    chat_rows: int = 12
    length: int = 256
    peak_lr: float = 2e-3
    warmup_steps: int = 100
    decay_share: float = 0.35
    long_steps: int = 150
    long_lr: float = 4e-4
    long_weight: float = 0.5

    @property
    def all_steps(self) -> int:
        return self.steps + self.long_steps

    def lr_at(self, step: int) -> float:
        """Warm up, stay, fall linearly to zero: unlike a cosine it lets a run be shortened before the fall begins.

        Then once more from `long_lr`, for the long rows.
        """
        if step >= self.steps:
            return self.long_lr * (self.all_steps - step) / self.long_steps
        decay_steps = max(1, round(self.steps * self.decay_share))
        return self.peak_lr * min(1.0, (step + 1) / self.warmup_steps, (self.steps - step) / decay_steps)

    def shape_at(self, step: int) -> tuple[int, int, int]:
        """(rows, rows of chat, length)."""
        if step < self.steps:
            return self.rows, self.chat_rows, self.length
        return self.rows // 3, self.chat_rows // 3, CONTEXT

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=self.hidden,
            intermediate_size=self.ffn,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.hidden // self.heads,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            rope_theta=10_000.0,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=END_ID,
            pad_token_id=END_ID,
        )


TARGET = Recipe("tiny", layers=5, hidden=256, heads=4, kv_heads=2, ffn=704, steps=5200, seed=3)
HUB = Recipe(
    "tiny-hub", layers=3, hidden=192, heads=3, kv_heads=1, ffn=384, steps=1400, seed=7, long_steps=100
)
DRAFT = Recipe(
    "tiny-draft", layers=2, hidden=96, heads=3, kv_heads=1, ffn=256, steps=900, seed=4, chat_rows=6
)
FAMILY = {recipe.name: recipe for recipe in (TARGET, HUB, DRAFT)}

assert SPECIAL_TOKENS[END_ID] == "<|end|>", "the end token must be the first special token"
