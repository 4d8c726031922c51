"""Options of `opensled selftest`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.models.pasted_names import model_name


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers >= 1 between commas. Raises UsageError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(f"{text!r} is not a list of whole numbers; write, for example, 1,8,64")
    return tuple(map(int, parts))


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
    answers: int = option(200, "number of answers to compare with those of the CPU", low=1, metavar="N")
    rows: str = option(
        "1,2,4,8,16,32,64,128,256", "numbers of rows of the steps to time", metavar="N,N", check=numbers
    )
    contexts: str = option(
        "1024,8192", "lengths of the texts in these steps, in tokens", metavar="N,N", check=numbers
    )
    repeats: int = option(20, "number of times to run each step; the median is reported", low=1, metavar="N")
    threads: int = option(0, "CPU threads of the target; 0 = torch's choice", low=0, metavar="N")
    short: bool = option(
        False, "run only a few small steps and answers, to see whether the target works at all"
    )
    out: str = option("gpu_check.json", "file for all measurements", metavar="FILE", often=True)
    json: bool = option(False, "print all measurements as JSON")
