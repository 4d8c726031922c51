"""The steps from nothing to `models/`, each resumable: what a step needs and does not find, it makes."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from . import corpus
from .export import export
from .family import CHAT_TOKENS, CORPUS_SEED, FAMILY, MODELS_DIR, TOKENIZER_SEED, Recipe
from .heldout import write_heldout
from .tokenizer import load_tokenizer, train_tokenizer
from .train import Trainer


class Workshop:
    """The scratch folder of a run: tokenizer, corpus and checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def tokenizer(self) -> PreTrainedTokenizerFast:
        path = self.folder / "tokenizer"
        if not path.exists():
            train_tokenizer(TOKENIZER_SEED).save_pretrained(path)
        return load_tokenizer(path)

    def corpus(self) -> corpus.Corpus:
        path = self.folder / "corpus.npz"
        if not path.exists():
            corpus.save(corpus.build(self.tokenizer(), CHAT_TOKENS, CORPUS_SEED), path)
        return corpus.load(path)

    def train(self, recipe: Recipe) -> None:
        Trainer(recipe, self.corpus(), self.folder).run()

    def export(self, recipe: Recipe, models_dir: Path = MODELS_DIR) -> None:
        """The latest checkpoint, finished or not: a half-trained model is good enough to develop against."""
        model = LlamaForCausalLM(recipe.config())
        state = torch.load(self.folder / f"{recipe.name}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        export(recipe, model.eval(), self.tokenizer(), models_dir)
        print(
            f"{models_dir / recipe.name}: step {state['step']}, {state['seconds']:.0f} s of training",
            flush=True,
        )

    def export_all(self) -> None:
        for recipe in FAMILY.values():
            self.export(recipe)
        write_heldout(MODELS_DIR / "heldout.jsonl")
