"""What `opensled adapt` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opensled.cli.config import option


@dataclass(frozen=True)
class AdaptConfig:
    """A draft model, the target that it is to fit, and what it has to gain."""

    draft: str = option(
        "tiny-draft", "the draft model: a model's name, or the path of its GGUF file or folder", often=True
    )
    target: str = option(
        "tiny", "the target: a model's name, or the path of its GGUF file or folder", often=True
    )
    out: str = option(
        "", "folder of the adapted draft; default: in the work folder", metavar="FOLDER", often=True
    )
    data: str = option(
        "self",
        "file with one prompt a line, which the target answers; self: prompts of its own",
        metavar="FILE",
        often=True,
    )
    kept: str = option(
        "",
        "folder of texts that a server kept of a tenant (opensled kept list): learn from them, in place of --data",
        metavar="FOLDER",
        often=True,
    )
    positions: int = option(
        200_000, "tokens that the target writes to learn from", low=100, metavar="N", often=True
    )
    epochs: int = option(6, "times to read them", low=1, high=1000, metavar="N", often=True)
    min_gain: float = option(
        0.1,
        "tokens a round that the draft must gain, with the whole 95 %% interval; else nothing is written to --out",
        low=0,
        metavar="X",
        often=True,
    )
    length: int = option(4, "tokens of the drafts that are measured", low=1, high=64, metavar="K")
    heldout: int = option(96, "held-out texts to measure along, at most", low=2, high=10_000, metavar="N")
    answer: int = option(96, "tokens of a held-out text, at most", low=8, high=4096, metavar="N")
    rate: float = option(1e-3, "highest learning rate", low=1e-6, high=0.1)
    work: str = option(
        "build/adapt", "folder for data and checkpoints; what it holds is not made again", metavar="DIR"
    )
    threads: int = option(2, "threads to train with", low=1, high=1024, metavar="N")
    onnx: bool = option(False, "write the draft for ONNX Runtime, too (needs the extra `train`)")
    json: bool = option(False, "print the report as JSON")

    @property
    def shop(self) -> Path:
        """Folder of this pair's data."""
        return Path(self.work) / f"{Path(self.draft).stem}-to-{Path(self.target).stem}"

    @property
    def folder(self) -> Path:
        return Path(self.out) if self.out else self.shop / "draft"
