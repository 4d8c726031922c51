"""The training loop of the draft. It can be stopped at any time and goes on from its last checkpoint.

The learning rate stays high for as long as there is time, and falls only in a last stretch (`end`). What is measured
and shipped is the mean of the latest weights, so that the curve can be read at any time.
"""

import copy
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lab.training.distil.agreement import agreement, of_model
from lab.training.distil.objective import losses
from lab.training.distil.shard_batches import BATCH_TOKENS, ShardText, batch_of, rounds_of_shards
from lab.training.train import adamw

CHECKPOINT_S = 180.0
LATEST = 8  # the mean of the weights is of the latest steps, about one in so many of all
VARIATION, DISTANCE = 1.0, 1.0  # weights beside the KL divergence
REPORT_STEPS = 20


@dataclass(frozen=True)
class Pace:
    """How fast a run learns, and how often it is measured."""

    rate: float = 8e-4  # learning rate
    warming: int = 60  # steps until it
    measured: int = 400_000  # tokens between two points of the curve
    batch: int = BATCH_TOKENS  # padded tokens of a step


@dataclass
class Progress:
    """Where a run stands; kept with the weights. `tokens`: positions trained on, repeated ones counted again."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    reads: Counter[str] = field(default_factory=Counter)  # of each shard


class Distiller:
    """Trains `draft` (float32) on the shards of `texts`; keeps checkpoint and curve in `folder`.

    `dtype` is what it multiplies in. `compiled`: by torch.compile, which takes a minute and trains a third faster.
    """

    def __init__(
        self,
        draft: LlamaForCausalLM,
        texts: Path,
        heldout: Path,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self.draft, self._texts, self._heldout, self._dtype = draft.train(), texts, heldout, dtype
        self._pace = pace or Pace()
        self._checkpoint, self._curve = folder / "draft.pt", folder / "curve.jsonl"
        self._trained = {name: weight for name, weight in draft.named_parameters() if weight.requires_grad}
        self._optimizer = adamw(self._trained.values(), decay=0.05)
        self._mean = {name: weight.detach().clone() for name, weight in self._trained.items()}
        self._measured = copy.deepcopy(draft).eval()
        self._generator = torch.Generator().manual_seed(1)
        self.progress = Progress()
        if self._checkpoint.exists():
            self._load()
        for layer in draft.model.layers if compiled else ():
            layer.compile(dynamic=True)

    def run(self, tokens: int, end: int = 0) -> None:
        """Until `tokens` are trained on in all; over the last `end` of them the learning rate falls to 0."""
        if self.progress.tokens >= tokens:
            return
        rng = random.Random(self.progress.steps)
        self._until, self._end = tokens, end
        if not self.progress.steps:
            self._measure()
        saved = time.monotonic()
        for groups in rounds_of_shards(self._texts, self.progress.reads, rng, self._pace.batch):
            for group in groups:
                self._step(group)
                if time.monotonic() - saved > CHECKPOINT_S or self.progress.tokens >= tokens:
                    self._save()
                    saved = time.monotonic()
                if self.progress.tokens >= tokens:
                    return self._measure()

    def _step(self, group: list[ShardText]) -> None:
        started, progress = time.monotonic(), self.progress
        for settings in self._optimizer.param_groups:
            settings["lr"] = self._rate()
        batch = batch_of(group)
        with torch.autocast("cpu", self._dtype, enabled=self._dtype != torch.float32):
            hidden = self.draft.model(batch.ids, use_cache=False).last_hidden_state[batch.asked]
            found = losses(hidden, self.draft.model.embed_tokens.weight, batch.aims, self._generator)
        (found.divergence + VARIATION * found.variation + DISTANCE * found.distance).backward()
        torch.nn.utils.clip_grad_norm_(self._trained.values(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._average()
        before, seconds = progress.tokens, time.monotonic() - started
        progress.steps, progress.tokens = progress.steps + 1, before + len(batch.aims.ids)
        progress.seconds += seconds
        if progress.steps % REPORT_STEPS == 0:
            rate = len(batch.aims.ids) / seconds
            print(
                f"{progress.steps}: {progress.tokens:,} tokens, KL {found.divergence:.3f}, "
                f"TV {found.variation:.3f}, distance {found.distance:.3f}, {rate:.0f}/s",
                flush=True,
            )
        each = self._pace.measured
        if before // each < progress.tokens // each and progress.tokens < self._until:
            self._measure()

    def _rate(self) -> float:
        left = max(0, self._until - self.progress.tokens)
        falling = min(1.0, left / self._end) if self._end else 1.0
        return self._pace.rate * min(1.0, (self.progress.steps + 1) / self._pace.warming) * falling

    @torch.no_grad()
    def _average(self) -> None:
        share = LATEST / (self.progress.steps + LATEST)
        for name, weight in self._trained.items():
            self._mean[name].lerp_(weight, share)

    def mean_draft(self) -> LlamaForCausalLM:
        """A model with the mean of the latest weights, the same one each time."""
        self._measured.load_state_dict(self._mean, strict=False)
        return self._measured

    def _measure(self) -> None:
        """Append a point to the curve."""
        started = time.monotonic()
        draft = self.mean_draft()
        greedy, sampled = (
            agreement(of_model(draft), self._heldout / f"{name}.npz") for name in ("greedy", "sampled")
        )
        point = {
            "tokens": self.progress.tokens,
            "steps": self.progress.steps,
            "seconds": round(self.progress.seconds),
            "agreement": round(greedy.mean, 4),
            "overlap": round(sampled.overlap, 4),
            **{kind: round(share, 4) for kind, share in greedy.by_kind.items()},
        }
        with self._curve.open("a") as file:
            file.write(json.dumps(point) + "\n")
        print(f"{json.dumps(point)} ({time.monotonic() - started:.0f} s)", flush=True)

    def _save(self) -> None:
        """Written beside and moved: a run killed while saving must not lose the last good checkpoint."""
        part = self._checkpoint.with_suffix(".part")
        weights: dict[str, Tensor] = {name: weight.detach() for name, weight in self._trained.items()}
        state = {"weights": weights, "mean": self._mean, "optimizer": self._optimizer.state_dict()}
        torch.save({**state, "progress": {**vars(self.progress), "reads": dict(self.progress.reads)}}, part)
        part.replace(self._checkpoint)

    def _load(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        self.draft.load_state_dict(state["weights"], strict=False)
        self._mean = state["mean"]
        self._optimizer.load_state_dict(state["optimizer"])
        kept = state["progress"]
        self.progress = Progress(**{**kept, "reads": Counter(kept["reads"])})
