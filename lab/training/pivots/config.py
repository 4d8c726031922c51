"""What `opensled train-pivots` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensled.cli.config import option

LOOSE, TARGET = "loose", "target"  # how a walk goes on behind a token that is no pivot


@dataclass(frozen=True)
class TrainPivotsConfig:
    """A target, a draft model whose mistakes are labelled, and how many tasks are asked."""

    target: str = option(
        "tiny", "the target: a model's name, or the path of its GGUF file or folder", often=True
    )
    draft: str = option(
        "tiny-draft",
        "the draft model whose tokens are labelled: a model's name, or the path of its GGUF file",
        often=True,
    )
    items: int = option(400, "tasks to ask", low=1, metavar="N", often=True, apart=True)
    rollouts: int = option(
        20, "answers to write behind each token that is labelled", low=1, high=1000, metavar="R", often=True
    )
    tasks: str = option(
        "", "kinds of tasks, separated by commas; default: all whose answers can be checked", often=True
    )
    out: str = option("", "folder of the classifier; default: in the work folder", metavar="DIR", often=True)
    work: str = option(
        "build/pivots", "folder for the labels; what it holds is not made again", metavar="DIR", apart=True
    )
    layer: int | None = option(
        None,
        "hidden state that the classifier reads, as transformers number them; default: by the number of layers",
        low=0,
    )
    seed: int = option(1, "of tasks and rollouts", low=0, high=1_000_000, apart=True)
    share: float = option(
        1.0,
        "share of the mismatches of a task to label; a small one leaves time for more tasks",
        low=0.01,
        high=1,
    )
    answer_tokens: int = option(128, "tokens of an answer, at most", low=1, high=4096, metavar="N")
    walk: str = option(
        LOOSE,
        "what is walked along: loose, with those tokens of the draft that are no pivots, or target, its own answer",
        choices=(LOOSE, TARGET),
    )
    threads: int = option(2, "threads to compute with", low=1, high=1024, metavar="N", apart=True)

    @property
    def shop(self) -> Path:
        """Folder of this target's labels."""
        return Path(self.work) / Path(self.target).stem

    @property
    def labelling(self) -> dict[str, Any]:
        """What decides the labels; how many there are does not."""
        names = ("target", "draft", "rollouts", "tasks", "seed", "share", "answer_tokens", "walk")
        return {name: getattr(self, name) for name in names}
