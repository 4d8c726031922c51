"""What `opensled train-exit` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opensled.config import option
from opensled.errors import UsageError

BEGINNINGS = ("last", "middle", "next")  # of the target's layers, the one that the new layer begins as


class Weights(NamedTuple):
    """Of the terms in their sum; 0 leaves a term out."""

    cosine: float = 1.0  # 1 - cos of the layer's states and those that it imitates
    divergence: float = 1.0  # KL of the draft's distribution from the target's, at temperature 1
    tokens: float = 1.0  # cross-entropy of the tokens that the target wrote

    def __str__(self) -> str:
        return ", ".join(f"{name} {weight:g}" for name, weight in self._asdict().items())


@dataclass(frozen=True)
class TrainExitConfig:
    """A target, where it is left, and how much is learned."""

    target: str = option(
        "tiny", "the target: a model's name, or the path of its GGUF file or folder", often=True
    )
    layers: str = option(
        "",
        "layers before the exit; several, as 8,12, are several drafts from the same states; default: half of them",
        metavar="N",
        often=True,
    )
    data: str = option(
        "self",
        "file with one prompt a line, which the target answers; self: prompts of its own",
        metavar="FILE",
        often=True,
    )
    positions: int = option(
        200_000, "tokens that the target writes to learn from", low=100, metavar="N", often=True
    )
    epochs: int = option(6, "times to read them, at most", low=1, high=1000, metavar="N", often=True)
    out: str = option(
        "",
        "folder of the draft, of several exits with -N behind its name; default: in the work folder",
        metavar="DIR",
        often=True,
    )
    work: str = option(
        "build/exits", "folder for data and checkpoints; what it holds is not made again", metavar="DIR"
    )
    threads: int = option(2, "threads to train with", low=1, high=1024, metavar="N")
    begin: str = option(
        BEGINNINGS[0],
        "the layer of the target that the new one begins as: its last one, the one in the middle between exit and end, "
        "or the next one behind the exit",
        choices=BEGINNINGS,
    )
    rate: float = option(2e-3, "highest learning rate", low=1e-6, high=0.1)
    draft: int = option(4, "tokens of the drafts that are measured", low=1, high=64, metavar="K")
    cosine: float = option(1.0, "weight of the distance from the target's last states", low=0)
    divergence: float = option(1.0, "weight of the distance from the target's probabilities", low=0)
    tokens: float = option(1.0, "weight of the tokens that the target wrote", low=0)
    ablate: bool = option(False, "train without each of the three as well, and compare")
    onnx: bool = option(False, "write the draft for ONNX Runtime, too (needs the extra `train`)")
    capture_only: bool = option(False, "make the data and stop")

    @property
    def weights(self) -> Weights:
        return Weights(self.cosine, self.divergence, self.tokens)

    @property
    def shop(self) -> Path:
        """Folder of this target's data and exits."""
        return Path(self.work) / Path(self.target).stem

    def exits(self, all_layers: int) -> tuple[int, ...]:
        """Layers before each exit of a target of `all_layers`. Raises UsageError."""
        words = self.layers.split(",") if self.layers else [str(all_layers // 2)]
        found = tuple([int(word) if word.strip().isdecimal() else 0 for word in words])
        if not all(1 <= layers < all_layers for layers in found) or len({*found}) < len(found):
            raise UsageError(
                f"--layers {self.layers}: name each exit once, behind layers 1 to {all_layers - 1} of this target, "
                "as --layers 8,12"
            )
        return found

    def folder(self, layers: int, count: int) -> Path:
        """Of the draft behind `layers` layers, of `count` that are made."""
        if not self.out:
            return self.shop / f"exit-{layers}" / "draft"
        return Path(self.out) if count == 1 else Path(f"{self.out}-{layers}")
