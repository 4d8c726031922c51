"""The steps from nothing to `models/`, each resumable: a step makes what it needs and does not find."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from . import corpus
from .export import export
from .family import CHAT_TOKENS, CORPUS_SEED, MODELS_DIR, TARGET, TOKENIZER_SEED, Recipe
from .heldout import write_heldout
from .train import Trainer, short_checkpoint
from .train_tokenizer import load_tokenizer, train_tokenizer


class Workshop:
    """The scratch folder of a run: tokenizer, corpus and checkpoints.

    `join`: the tokenizer is that of the target in `models/`, for a new member beside those that are there.
    """

    def __init__(self, folder: Path, join: bool = False) -> None:
        self.folder, self.join = folder, join
        folder.mkdir(parents=True, exist_ok=True)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        path = self.folder / "tokenizer"
        if not path.exists():
            made = load_tokenizer(MODELS_DIR / TARGET.name) if self.join else train_tokenizer(TOKENIZER_SEED)
            made.save_pretrained(path)
        return load_tokenizer(path)

    def corpus(self) -> corpus.Corpus:
        path = self.folder / "corpus.npz"
        if not path.exists():
            corpus.save(corpus.build(self.tokenizer(), CHAT_TOKENS, CORPUS_SEED), path)
        return corpus.load(path)

    def train(self, recipe: Recipe) -> None:
        Trainer(recipe, self.corpus(), self.folder).run()

    def export(self, recipe: Recipe, models_dir: Path = MODELS_DIR) -> None:
        model = LlamaForCausalLM(recipe.config())
        model.load_state_dict(self._weights(recipe))
        export(recipe, model.eval(), self.tokenizer(), models_dir)
        print(f"exported {models_dir / recipe.name}", flush=True)

    def _weights(self, recipe: Recipe) -> dict[str, torch.Tensor]:
        """The mean of the weights before and after the long rows. A run that is not there yet gives its latest
        checkpoint: a half-trained model is good enough to develop against.
        """
        last = _load_weights(self.folder / f"{recipe.name}.pt")
        before = short_checkpoint(recipe, self.folder)
        if not before.exists():
            return last
        return {
            name: torch.lerp(weight, last[name], recipe.long_weight)
            for name, weight in _load_weights(before).items()
        }

    def export_all(self, members: Sequence[Recipe]) -> None:
        """Into `models/`, with the held-out items; a member that joins is measured on those that are there."""
        for recipe in members:
            self.export(recipe)
        if not self.join:
            write_heldout(MODELS_DIR / "heldout.jsonl")


def _load_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(checkpoint, weights_only=True)["model"]
    return weights
