"""Options of `opensled train-pivots`, and their defaults."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opensled.cli.config import option

LOOSE, TARGET = "loose", "target"  # how a walk goes on behind a token that is no pivot


@dataclass(frozen=True)
class TrainPivotsConfig:
    """The target, the draft model whose mistakes are labelled, and the number of tasks."""

    target: str = option("tiny", "target model: a name, or the path of its GGUF file or folder", often=True)
    draft: str = option(
        "tiny-draft",
        "draft model whose tokens are labelled: a name, or the path of its GGUF file",
        often=True,
    )
    items: int = option(400, "number of tasks", low=1, metavar="N", often=True, apart=True)
    rollouts: int = option(
        20, "number of answers to write after each labelled token", low=1, high=1000, metavar="R", often=True
    )
    tasks: str = option(
        "", "kinds of tasks, comma-separated; default: all kinds whose answers can be checked", often=True
    )
    out: str = option("", "folder for the classifier; default: a folder in --work", metavar="DIR", often=True)
    work: str = option(
        "build/pivots", "folder for the labels; existing ones are used again", metavar="DIR", apart=True
    )
    layer: int | None = option(
        None,
        "number of the hidden state that the classifier reads, as in transformers; default: from the number of layers",
        low=0,
    )
    seed: int = option(1, "seed of tasks and rollouts", low=0, high=1_000_000, apart=True)
    share: float = option(
        1.0,
        "share of the mismatches of a task to label; a small share leaves time for more tasks",
        low=0.01,
        high=1,
    )
    answer_tokens: int = option(128, "maximum length of an answer, in tokens", low=1, high=4096, metavar="N")
    walk: str = option(
        LOOSE,
        "text to walk along: target = the target's own answer; loose = the same with draft tokens that are not pivots",
        choices=(LOOSE, TARGET),
    )
    threads: int = option(2, "number of CPU threads", low=1, high=1024, metavar="N", apart=True)

    @property
    def shop(self) -> Path:
        """Folder of this target's labels."""
        return Path(self.work) / Path(self.target).stem

    @property
    def labelling(self) -> dict[str, Any]:
        """What decides the labels; how many there are does not."""
        names = ("target", "draft", "rollouts", "tasks", "seed", "share", "answer_tokens", "walk")
        return {name: getattr(self, name) for name in names}
