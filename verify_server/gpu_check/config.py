"""Options of `opensled selftest`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.models.pasted_names import model_name


@dataclass(frozen=True)
class SelftestConfig:
    """The target to test, and the size of the test."""

    model: str = option(
        "tiny",
        "target model: a name listed by `opensled models list`, a folder, a GGUF file, or a Hugging Face id",
        often=True,
        read=model_name,
    )
    device: str = option("auto", "processor of the target: auto, cpu, cuda or cuda:1", often=True)
    dtype: str = option(
        "auto", "precision of the target", choices=("auto", "float64", "float32", "bfloat16", "float16")
    )
    answers: int = option(
        200, "number of answers to compare with those of the CPU", low=1, metavar="N", often=True
    )
    threads: int = option(0, "CPU threads of the target; 0 = torch's choice", low=0, high=1024, metavar="N")
    json: bool = option(False, "print the result as JSON")
