"""Training along a plan: a checkpoint every two minutes, resume without a trace."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from ..train import adamw
from .recipe import Plan

CHECKPOINT_SECONDS = 120.0
REPORT_STEPS = 50

# The loss of a step by its number; what it reads depends on that alone.
Loss = Callable[[int], Tensor]


class Course:
    """`learner` on its way along `plan`; `run` takes it from the last checkpoint to the end."""

    def __init__(self, learner: nn.Module, plan: Plan, loss: Loss, checkpoint: Path) -> None:
        self._learner, self._plan, self._loss = learner, plan, loss
        self._checkpoint = checkpoint
        self._optimizer = adamw(learner.parameters(), decay=0.05)
        self.step = 0
        self.seconds = 0.0
        if checkpoint.exists():
            self._load()

    def run(self) -> list[float]:
        """The losses of the steps it took."""
        losses: list[float] = []
        saved = reported = time.monotonic()
        while self.step < self._plan.steps:
            losses.append(self._train_step())
            now = time.monotonic()
            if self.step % REPORT_STEPS == 0:
                self._report(losses[-REPORT_STEPS:], now - reported)
                reported = now
            if now - saved > CHECKPOINT_SECONDS:
                self._save()
                saved = now
        self._save()
        return losses

    def _train_step(self) -> float:
        started = time.monotonic()
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.lr_at(self.step)
        loss = self._loss(self.step)
        loss.backward()
        nn.utils.clip_grad_norm_(self._learner.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.seconds += time.monotonic() - started
        return loss.item()

    def _report(self, losses: list[float], seconds: float) -> None:
        mean = sum(losses) / len(losses)
        name = self._checkpoint.stem
        print(
            f"{name} {self.step}/{self._plan.steps} loss {mean:.3f} {len(losses) / seconds:.2f} steps/s",
            flush=True,
        )

    def _save(self) -> None:
        """Written beside and moved: a run killed while saving must not lose the last good checkpoint."""
        part = self._checkpoint.with_suffix(".part")
        state = {"learner": self._learner.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save({**state, "step": self.step, "seconds": self.seconds}, part)
        part.replace(self._checkpoint)

    def _load(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        self._learner.load_state_dict(state["learner"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]
