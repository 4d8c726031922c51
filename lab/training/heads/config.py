"""What `opensled train-head` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opensled.cli.config import option


class Form(NamedTuple):
    """Of a head, unless the user says otherwise."""

    loss: str  # see lab/training/heads/losses.py
    length: int  # tokens or frames of a draft
    markov: int = 0  # rank of the bias between neighbours; 0 = none


FORMS = {
    "specformer": Form("lk", 5, 128),
    "ctc": Form("ctc", 7),
}
LOSSES = ("lk", "tvd", "ce", "hard", "ctc")


@dataclass(frozen=True)
class TrainHeadConfig:
    """A target, the kind of its head, and how much is learned."""

    target: str = option(
        "tiny", "the target: a model's name, or the path of its GGUF file or folder", often=True
    )
    head: str = option(
        "specformer",
        "kind of the head",
        choices=tuple(FORMS),
        often=True,
    )
    data: str = option(
        "self",
        "file with one prompt a line, which the target answers; self: prompts of its own",
        metavar="FILE",
        often=True,
    )
    positions: int = option(
        1_000_000, "tokens that the target writes to learn from", low=100, metavar="N", often=True
    )
    epochs: int = option(4, "times to read them, at most", low=1, high=1000, metavar="N", often=True)
    out: str = option(
        "", "folder of the trained head; default: in the work folder", metavar="DIR", often=True
    )
    work: str = option(
        "build/heads", "folder for data and checkpoints; what it holds is not made again", metavar="DIR"
    )
    threads: int = option(2, "threads to train with", low=1, high=1024, metavar="N")
    loss: str = option("", "what is learned; default: that of the kind", choices=("", *LOSSES))
    length: int | None = option(
        None, "tokens of a draft, or frames of ctc; default: that of the kind", low=1, high=64, metavar="K"
    )
    markov: int | None = option(
        None,
        "rank of the bias between neighbouring tokens; 0 = none; default: that of the kind",
        low=0,
        high=4096,
    )
    vocabulary: int = option(8192, "ids that can be drafted, the commonest ones", low=1, metavar="N")
    capture_only: bool = option(False, "make the data and stop")

    @property
    def form(self) -> Form:
        kind = FORMS[self.head]
        return Form(
            self.loss or kind.loss,
            kind.length if self.length is None else self.length,
            kind.markov if self.markov is None else self.markov,
        )

    @property
    def shop(self) -> Path:
        """Folder of this target's data and heads."""
        return Path(self.work) / Path(self.target).stem
