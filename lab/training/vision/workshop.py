"""The steps from nothing to `models/tiny-vision`, each resumable."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM, LlavaForConditionalGeneration
from transformers.utils.logging import disable_progress_bar

from .. import corpus
from ..family import CORPUS_SEED, HUB, MODELS_DIR, TARGET
from .course import Course
from .learner import Learner
from .recipe import VisionRecipe
from .rows import RowMaker
from .start import fresh, take_over
from .tokens import vision_tokenizer


class VisionWorkshop:
    """The scratch folder of a run: checkpoints and the text that is mixed in."""

    def __init__(self, recipe: VisionRecipe, folder: Path, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        disable_progress_bar()
        self.recipe, self.folder = recipe, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.tokenizer = vision_tokenizer(MODELS_DIR / TARGET.name)

    def text(self) -> corpus.Stream:
        """Chats of the tiny family, of which only the replies are predicted."""
        path = self.folder / "text.npz"
        if not path.exists():
            made = corpus.chat_stream(self.tokenizer, self.recipe.text_tokens, CORPUS_SEED)
            np.savez(path, ids=made.ids, wanted=made.wanted, starts=made.starts)
        with np.load(path) as arrays:
            return corpus.Stream(arrays["ids"], arrays["wanted"], arrays["starts"])

    def train(self) -> None:
        """First the tower, then the whole."""
        model = fresh(self.recipe)
        take_over(model, LlamaForCausalLM.from_pretrained(MODELS_DIR / HUB.name, dtype=torch.float32))
        learner = Learner(model, self.recipe).train()
        Course(learner, self.recipe.tower, learner.seeing_loss, self._tower_checkpoint).run()
        maker = RowMaker(self.recipe, self.tokenizer, self.text())
        Course(
            learner,
            self.recipe.joint,
            lambda step: learner.answering_loss(maker.batch(step)),
            self._checkpoint,
        ).run()

    def trained(self) -> LlavaForConditionalGeneration:
        """From the latest checkpoint."""
        learner = Learner(fresh(self.recipe), self.recipe)
        learner.load_state_dict(torch.load(self._checkpoint, weights_only=True)["learner"])
        return learner.model.eval()

    @property
    def _tower_checkpoint(self) -> Path:
        return self.folder / f"{self.recipe.name}-tower.pt"

    @property
    def _checkpoint(self) -> Path:
        return self.folder / f"{self.recipe.name}.pt"
