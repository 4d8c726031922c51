"""The training loop of a head. It can be stopped at any time and goes on from its last checkpoint.

The rate falls along a cosine to nothing; where the held-out tokens per step stop rising, training stops. The head that
is given is the one that was measured best.
"""

import hashlib
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from lab.training.heads.batches import drawn_rows, groups_of_windows
from lab.training.heads.heldout import tokens_per_step
from lab.training.heads.pupil import Pupil
from lab.training.heads.windows import Window, rows
from lab.training.train import adamw
from opensled.core.errors import NotFound, UsageError

CHECKPOINT_S = 180.0
REPORT_STEPS = 20


@dataclass(frozen=True)
class Plan:
    """Of one training."""

    loss: str  # see losses.LOSSES
    epochs: int = 6  # times that the windows are read, at most
    read: int = 512  # rows of a step, of whole windows
    starts: int = 48  # of each window the rows that drafts start from, at most; drawn anew each time
    rate: float = 1e-3  # the highest learning rate
    warming: int = 100  # steps until it
    decay: float = 0.05
    measure_steps: int = 200  # between two points of the curve
    patience: int = 4  # points in a row without a rise of RISE, until training stops
    seed: int = 1


RISE = 0.002  # of the tokens per step, as a share


@dataclass
class Progress:
    """Where a training stands; kept with the weights."""

    steps: int = 0
    rows: int = 0  # drafted from, repeated ones counted again
    seconds: float = 0.0
    best: float = 0.0  # tokens per step
    stale: int = 0  # points since it rose


class Trainer:
    """Trains `pupil` on the shards `paths`; keeps checkpoint and curve in `folder`.

    Raises UsageError where the checkpoint there is of another training.
    """

    def __init__(
        self, pupil: Pupil, paths: Sequence[Path], heldout: Sequence[Window], folder: Path, plan: Plan
    ) -> None:
        self.pupil, self.plan = pupil, plan
        self._paths, self._heldout = list(paths), heldout
        self._checkpoint, self._curve = folder / "head.pt", folder / "curve.jsonl"
        self._head = pupil.head.train()
        self._optimizer = adamw(self._head.parameters(), plan.decay)
        self._best = self._weights()
        self._losses: list[float] = []
        self._epoch_steps = math.ceil(sum(map(rows, paths)) / plan.read)
        self.progress = Progress()
        # What another training in this folder could not go on with.
        ids = hashlib.sha256(pupil.places.tobytes()).hexdigest()
        self._about = {"loss": plan.loss, "shape": repr(pupil.shape), "ids": ids}
        if self._checkpoint.exists():
            self._load()

    @property
    def all_steps(self) -> int:
        return self._epoch_steps * self.plan.epochs

    def run(self) -> None:
        """Until the end of the plan, or until it stops rising; then the head has its best weights. Raises NotFound."""
        saved = time.monotonic()
        if not self.progress.steps:
            self._measure()
        for windows in self._groups():
            if self.progress.steps >= self.all_steps or self.progress.stale >= self.plan.patience:
                break
            self._step(windows)
            if self.progress.steps % self.plan.measure_steps == 0:
                self._measure()
            if time.monotonic() - saved > CHECKPOINT_S:
                self._save()
                saved = time.monotonic()
        if self._losses:  # of steps behind the last point
            self._measure()
        self._save()
        self._head.load_state_dict(self._best)

    def _groups(self) -> Iterator[list[Window]]:
        """Endless. A run that goes on begins with a new order. Raises NotFound."""
        rng = random.Random(f"{self.plan.seed} {self.progress.steps}")
        taps, read = self.pupil.shape.taps, self.plan.read
        while True:
            groups = groups_of_windows(self._paths, taps, read, rng)
            if (first := next(groups, None)) is None:
                raise NotFound(
                    "the texts have no place from which a head can draft: their answers are too short"
                )
            yield first
            yield from groups

    def _step(self, windows: list[Window]) -> None:
        started, progress = time.monotonic(), self.progress
        for settings in self._optimizer.param_groups:
            settings["lr"] = self._rate()
        rng = np.random.default_rng((self.plan.seed, progress.steps))
        batch = self.pupil.batch(windows, drawn_rows(windows, self.plan.starts, rng))
        loss = self.pupil.loss(batch, self.plan.loss)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._losses.append(loss.item())
        progress.steps, progress.rows = progress.steps + 1, progress.rows + len(batch.starts)
        progress.seconds += time.monotonic() - started
        if progress.steps % REPORT_STEPS == 0:
            self._report()

    def _rate(self) -> float:
        done = min(1.0, self.progress.steps / max(1, self.all_steps))
        warm = min(1.0, (self.progress.steps + 1) / self.plan.warming)
        return self.plan.rate * warm * (1 + math.cos(math.pi * done)) / 2

    def _report(self) -> None:
        progress, mean = self.progress, np.mean(self._losses[-REPORT_STEPS:])
        rate = progress.rows / progress.seconds
        print(
            f"{self.pupil.shape.kind} {progress.steps}/{self.all_steps}: {progress.rows:,} rows, "
            f"{self.plan.loss} {mean:.3f}, {rate:.0f}/s",
            flush=True,
        )

    def _measure(self) -> None:
        """Append a point to the curve, and keep the weights if they are the best."""
        started, progress = time.monotonic(), self.progress
        found = tokens_per_step(self.pupil, self._heldout)
        loss = round(float(np.mean(self._losses)), 4) if self._losses else None
        where = {"steps": progress.steps, "rows": progress.rows, "seconds": round(progress.seconds)}
        point = json.dumps({**where, "loss": loss, **found})
        with self._curve.open("a") as file:
            file.write(point + "\n")
        print(f"{point} ({time.monotonic() - started:.0f} s)", flush=True)
        self._losses = []
        self._judge(next(reversed(found.values()), 0.0))  # of the tree

    def _judge(self, mean: float) -> None:
        progress = self.progress
        progress.stale = 0 if mean > progress.best * (1 + RISE) else progress.stale + 1
        if mean > progress.best:
            progress.best, self._best = mean, self._weights()

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.detach().clone() for name, weight in self._head.state_dict().items()}

    def _save(self) -> None:
        """Written beside and moved: a run killed while saving must not lose the last good checkpoint."""
        part = self._checkpoint.with_suffix(".part")
        state = {"weights": self._weights(), "best": self._best, "optimizer": self._optimizer.state_dict()}
        torch.save({**state, "progress": asdict(self.progress), "about": self._about}, part)
        part.replace(self._checkpoint)

    def _load(self) -> None:
        state = torch.load(self._checkpoint, weights_only=True)
        if other := [name for name, value in self._about.items() if state["about"][name] != value]:
            raise UsageError(
                f"{self._checkpoint} is of a training with another {' and '.join(other)}; remove its folder, or name "
                "another one with --work"
            )
        self._head.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._best, self.progress = state["best"], Progress(**state["progress"])
