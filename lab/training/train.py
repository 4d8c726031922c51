"""The training loop: fixed seeds, fixed steps, a checkpoint every two minutes, resume without a trace."""

import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.nn import functional
from torch.nn.parameter import Parameter
from transformers import LlamaForCausalLM

from verify_server.engine.torch.loading import has_fast_bfloat16

from .corpus import Corpus
from .family import Recipe

CHECKPOINT_SECONDS = 120.0
REPORT_STEPS = 20
THREADS = 2


def short_checkpoint(recipe: Recipe, work: Path) -> Path:
    """Where the weights stand as they were before the long rows."""
    return work / f"{recipe.name}-short.pt"


class Trainer:
    """One model on its way: `run` takes it from the last checkpoint in `work` to the end of its recipe."""

    def __init__(self, recipe: Recipe, corpus: Corpus, work: Path) -> None:
        torch.set_num_threads(THREADS)
        torch.manual_seed(recipe.seed)
        self.recipe = recipe
        self.corpus = corpus
        self.model = LlamaForCausalLM(recipe.config()).train()
        self._rounds = has_fast_bfloat16()
        self.optimizer = adamw(self.model.parameters(), decay=0.1)
        self.checkpoint = work / f"{recipe.name}.pt"
        self.short_checkpoint = short_checkpoint(recipe, work)
        self.step = 0
        self.seconds = 0.0
        if self.checkpoint.exists():
            self._load()

    def run(self) -> LlamaForCausalLM:
        saved = reported = time.monotonic()
        losses: list[float] = []
        while self.step < self.recipe.all_steps:
            if self.step == self.recipe.steps:
                self._save(self.short_checkpoint)
            losses.append(self._train_step())
            now = time.monotonic()
            if self.step % REPORT_STEPS == 0:
                self._report(losses, now - reported)
                self.seconds += now - reported
                reported, losses = now, []
            if now - saved > CHECKPOINT_SECONDS:
                self._save(self.checkpoint)
                saved = now
        self._save(self.checkpoint)
        return self.model.eval()

    def _train_step(self) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.lr_at(self.step)
        loss = self._loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def _loss(self) -> torch.Tensor:
        """Mean cross-entropy of the wanted tokens; the output layer runs for those alone."""
        shape = self.recipe.shape_at(self.step)
        ids, wanted = self.corpus.batch((self.recipe.seed, self.step), *shape)
        tokens, predicted = torch.from_numpy(ids), torch.from_numpy(wanted[:, 1:])
        # Without instructions for it, bfloat16 is slower than float32.
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._rounds):
            hidden = self.model.model(tokens[:, :-1], use_cache=False).last_hidden_state
            logits = self.model.lm_head(hidden[predicted])
        return functional.cross_entropy(logits.float(), tokens[:, 1:][predicted])

    def _report(self, losses: list[float], seconds: float) -> None:
        rows, _, length = self.recipe.shape_at(self.step - 1)
        rate = len(losses) * rows * length / seconds
        mean = sum(losses) / len(losses)
        print(
            f"{self.recipe.name} {self.step}/{self.recipe.all_steps} loss {mean:.3f} {rate:.0f} tokens/s",
            flush=True,
        )

    def _save(self, checkpoint: Path) -> None:
        """Written beside and moved: a run killed while saving must not lose the last good checkpoint."""
        part = checkpoint.with_suffix(".part")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "step": self.step, "seconds": self.seconds}, part)
        part.replace(checkpoint)

    def _load(self) -> None:
        state = torch.load(self.checkpoint, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def adamw(parameters: Iterable[Parameter], decay: float) -> torch.optim.Optimizer:
    """Weight decay on matrices only: a norm's gain has no reason to be small."""
    groups: dict[bool, list[Parameter]] = {True: [], False: []}
    for parameter in parameters:
        groups[parameter.ndim > 1].append(parameter)
    decayed = [
        {"params": groups[True], "weight_decay": decay},
        {"params": groups[False], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(decayed, lr=0.0, betas=(0.9, 0.95), fused=True)
