"""What is trained: the model, and a reader that says of each patch what is drawn there, and where it lies.

At first only the tower and the projector learn, for the reader: that costs minutes, and the decoder then learns to
read rows that show what is there. Later all learn from the replies, and the reader goes on beside them. It is not kept.
"""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlavaForConditionalGeneration

from .canvas import FIGURES, PALETTE, PATCH, SIDE
from .recipe import VisionRecipe
from .rows import Batch
from .scenes import draw, pixels

# Classes of each mark of a patch, in the order of `Canvas.marks`.
CLASSES = (1 + len(PALETTE), 1 + len(FIGURES), 2, 1 + SIDE // PATCH, 1 + SIDE // PATCH)
EMPTY_WEIGHT = 0.1  # most patches are empty, which is soon learned
MARKS_WEIGHT = 0.5  # beside the loss of the replies


class Learner(nn.Module):
    """The model and its reader."""

    def __init__(self, model: LlavaForConditionalGeneration, recipe: VisionRecipe) -> None:
        super().__init__()
        self.model = model
        self.reader = nn.Linear(recipe.hidden, sum(CLASSES))
        self._recipe = recipe

    def seeing_loss(self, step: int) -> Tensor:
        """Of the tower and the projector alone, on pictures of their own."""
        rng = random.Random(f"tower-{self._recipe.seed}-{step}")
        scenes = [draw(rng, "train") for _ in range(self._recipe.tower_pictures)]
        pictures = torch.from_numpy(np.stack([pixels(scene.image) for scene in scenes]))
        marks = torch.from_numpy(np.stack([scene.marks for scene in scenes]))
        return self._marks_loss(torch.stack(self.model.get_image_features(pictures).pooler_output), marks)

    def answering_loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the replies, and that of the marks; the output layer runs for the replies alone."""
        wanted = batch.wanted[:, 1:]
        read = self.model.model(
            input_ids=batch.ids[:, :-1],
            pixel_values=batch.pixels,
            attention_mask=batch.mask,
            position_ids=batch.positions,
            use_cache=False,
        )
        logits = self.model.lm_head(read.last_hidden_state[wanted])
        replies = functional.cross_entropy(logits, batch.ids[:, 1:][wanted])
        return replies + MARKS_WEIGHT * self._marks_loss(read.image_hidden_states, batch.marks)

    def _marks_loss(self, rows: Tensor, marks: Tensor) -> Tensor:
        """`rows` [patches, hidden], of one picture after the other; summed over the marks."""
        split = self.reader(rows.flatten(0, -2)).split(CLASSES, dim=-1)
        wanted = marks.flatten(0, -2).long().unbind(-1)
        return torch.stack([_weighed(logits, ids) for logits, ids in zip(split, wanted, strict=True)]).sum()


def _weighed(logits: Tensor, marks: Tensor) -> Tensor:
    weights = torch.ones(logits.shape[-1])
    weights[0] = EMPTY_WEIGHT
    return functional.cross_entropy(logits, marks, weights)
