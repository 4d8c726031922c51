"""Options of `opensled train-head`, and their defaults."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from opensled.cli.config import option


class Form(NamedTuple):
    """Defaults of one kind of head."""

    loss: str  # see lab/training/heads/losses.py
    length: int  # tokens or frames of a draft
    markov: int = 0  # rank of the bias between neighbours; 0 = none


FORMS = {"specformer": Form("lk", 5, 128), "ctc": Form("ctc", 7)}
LOSSES = ("lk", "tvd", "ce", "hard", "ctc")


@dataclass(frozen=True)
class TrainHeadConfig:
    """The target, the kind of head, and the amount of training."""

    target: str = option("tiny", "target model: a name, or the path of its GGUF file or folder", often=True)
    head: str = option("specformer", "kind of draft head", choices=tuple(FORMS), often=True)
    data: str = option(
        "self",
        "file of prompts for the target, one per line; self = prompts that the target writes",
        metavar="FILE",
        often=True,
    )
    positions: int = option(
        1_000_000,
        "number of tokens that the target writes as training data",
        low=100,
        metavar="N",
        often=True,
    )
    epochs: int = option(4, "maximum number of epochs", low=1, high=1000, metavar="N", often=True)
    out: str = option(
        "", "folder for the trained head; default: a folder in --work", metavar="DIR", often=True
    )
    work: str = option(
        "build/heads", "folder for data and checkpoints; existing ones are used again", metavar="DIR"
    )
    threads: int = option(2, "CPU threads for training", low=1, high=1024, metavar="N")
    loss: str = option("", "loss function; default: the one for the kind of head", choices=("", *LOSSES))
    length: int | None = option(
        None,
        "draft length in tokens (ctc: in frames); default: the one for the kind of head",
        low=1,
        high=64,
        metavar="K",
    )
    markov: int | None = option(
        None,
        "rank of the bias between neighbouring tokens; 0 = no bias; default: the one for the kind of head",
        low=0,
        high=4096,
    )
    vocabulary: int = option(
        8192, "number of token ids that the head can draft: the most frequent ones", low=1, metavar="N"
    )
    capture_only: bool = option(False, "write the training data, then stop")

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
