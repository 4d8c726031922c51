"""The training loop of a draft that goes on learning from the target's probabilities.

It can be stopped at any time and goes on from its last checkpoint with the same batches.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

from lab.training.distil.objective import apart
from lab.training.distil.shard_batches import ShardText, batch_of, batches_of
from lab.training.train import adamw
from opensled.core.errors import UsageError

CHECKPOINT_S = 60.0
REPORT_STEPS = 20
WARMING = 20  # steps until the highest learning rate
DECAY = 0.01
SEED = 3


@dataclass
class Learned:
    """Where a training stands; kept with the weights. `tokens`: positions learned from, repeated ones counted again."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    weights: int = 0  # numbers that learn


class DraftLearner:
    """Trains `draft` (float32) on `texts`, each read `epochs` times; the checkpoint is in `folder` (made).

    `about` says what is trained; UsageError where the checkpoint there is of something else.
    """

    def __init__(
        self,
        draft: LlamaForCausalLM,
        texts: Sequence[ShardText],
        folder: Path,
        about: dict[str, object],
        epochs: int,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.draft, self._texts, self._epochs, self._highest = draft.train(), texts, epochs, rate
        self._about = {**about, "texts": len(texts), "epochs": epochs, "rate": rate}
        self._clock = clock
        self._optimizer = adamw(draft.parameters(), DECAY)
        self._per_epoch = len(batches_of(texts, random.Random(SEED)))
        self.learned = Learned(weights=sum(each.numel() for each in draft.parameters()))
        folder.mkdir(parents=True, exist_ok=True)
        self._checkpoint = folder / "draft.pt"
        if self._checkpoint.exists():
            self._load()

    @property
    def all_steps(self) -> int:
        return self._per_epoch * self._epochs

    def run(self) -> None:
        """Until all is read; `draft` then is an ordinary model."""
        saved = self._clock()
        for number, group in enumerate(self._groups()):
            if number < self.learned.steps:
                continue
            self._step(group)
            if self._clock() - saved > CHECKPOINT_S:
                self._save()
                saved = self._clock()
        self._save()
        self.draft.eval()

    def _groups(self) -> Iterator[list[ShardText]]:
        for epoch in range(self._epochs):
            yield from batches_of(self._texts, random.Random(SEED + epoch))

    def _step(self, group: list[ShardText]) -> None:
        started, learned = self._clock(), self.learned
        for settings in self._optimizer.param_groups:
            settings["lr"] = self._rate()
        batch = batch_of(group)
        generator = torch.Generator().manual_seed(learned.steps)
        hidden = self.draft.model(batch.ids, use_cache=False).last_hidden_state[batch.asked]
        divergence, variation = apart(hidden, self.draft.model.embed_tokens.weight, batch.aims, generator)
        divergence.backward()
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        learned.steps, learned.tokens = learned.steps + 1, learned.tokens + len(batch.aims.ids)
        learned.seconds += self._clock() - started
        if learned.steps % REPORT_STEPS == 0:
            print(
                f"{learned.steps}/{self.all_steps}: {learned.tokens:,} tokens, KL {divergence.item():.3f}, "
                f"TV {variation.item():.3f}, {learned.tokens / learned.seconds:.0f}/s",
                flush=True,
            )

    def _rate(self) -> float:
        """It rises, and falls in a line to nothing."""
        left = 1 - self.learned.steps / self.all_steps
        return self._highest * min(1.0, (self.learned.steps + 1) / WARMING) * left

    def _save(self) -> None:
        """Written beside and moved: a run killed while saving must not lose the last good checkpoint."""
        part = self._checkpoint.with_suffix(".part")
        state = {"model": self.draft.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save({**state, "learned": asdict(self.learned), "about": self._about}, part)
        part.replace(self._checkpoint)

    def _load(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        if other := [name for name, value in self._about.items() if state["about"].get(name) != value]:
            raise UsageError(
                f"{self._checkpoint} is of a training with another {' and '.join(other)}; remove it, or name another "
                "folder with --work"
            )
        self.draft.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.learned = Learned(**state["learned"])
