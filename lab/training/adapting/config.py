"""Options of `opensled adapt`, and their defaults."""

from dataclasses import dataclass
from pathlib import Path

from opensled.cli.config import option


@dataclass(frozen=True)
class AdaptConfig:
    """The draft model to adapt, its target, and the gain that is required."""

    draft: str = option(
        "tiny-draft", "draft model: a name, or the path of its GGUF file or folder", often=True
    )
    target: str = option("tiny", "target model: a name, or the path of its GGUF file or folder", often=True)
    out: str = option(
        "", "folder for the adapted draft; default: a folder in --work", metavar="FOLDER", often=True
    )
    data: str = option(
        "self",
        "file of prompts for the target, one per line; self = prompts that the target writes",
        metavar="FILE",
        often=True,
    )
    kept: str = option(
        "",
        "folder of a tenant's kept texts (opensled kept list) to train on, instead of --data",
        metavar="FOLDER",
        often=True,
    )
    positions: int = option(
        200_000, "number of tokens that the target writes as training data", low=100, metavar="N", often=True
    )
    epochs: int = option(6, "number of epochs", low=1, high=1000, metavar="N", often=True)
    min_gain: float = option(
        0.1,
        "minimum gain in tokens per round (lower end of the 95 % interval); below it nothing is written to --out",
        low=0,
        metavar="X",
        often=True,
    )
    length: int = option(4, "draft length for the measurement, in tokens", low=1, high=64, metavar="K")
    heldout: int = option(
        96, "maximum number of held-out texts for the measurement", low=2, high=10_000, metavar="N"
    )
    answer: int = option(96, "maximum length of a held-out text, in tokens", low=8, high=4096, metavar="N")
    rate: float = option(1e-3, "maximum learning rate", low=1e-6, high=0.1)
    work: str = option(
        "build/adapt", "folder for data and checkpoints; existing ones are used again", metavar="DIR"
    )
    threads: int = option(2, "CPU threads for training", low=1, high=1024, metavar="N")
    onnx: bool = option(False, "also write the draft for ONNX Runtime (needs the extra `train`)")
    json: bool = option(False, "print the report as JSON")

    @property
    def shop(self) -> Path:
        """Folder of this pair's data."""
        return Path(self.work) / f"{Path(self.draft).stem}-to-{Path(self.target).stem}"

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else self.shop / "draft"
