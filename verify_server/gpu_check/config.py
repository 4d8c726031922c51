"""Options of `opensled selftest`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers >= 1 between commas. Raises UsageError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(f"{text!r} is no list of whole numbers such as 1,8,64")
    return tuple(map(int, parts))


@dataclass(frozen=True)
class SelftestConfig:
    """What to test, and how much of it."""

    model: str = option(
        "tiny", "target: a name of `opensled models list`, a folder, a GGUF file, or a hub id", often=True
    )
    device: str = option("auto", "what computes the target: auto, cpu, cuda or cuda:1", often=True)
    dtype: str = option(
        "auto", "precision of the target", choices=("auto", "float64", "float32", "bfloat16", "float16")
    )
    answers: int = option(200, "answers to compare with this machine's processor", low=1, metavar="N")
    rows: str = option("1,2,4,8,16,32,64,128,256", "rows of the steps to time", metavar="N,N", check=numbers)
    contexts: str = option("1024,8192", "tokens of each text in those steps", metavar="N,N", check=numbers)
    repeats: int = option(20, "steps of each kind to time; the median counts", low=1, metavar="N")
    threads: int = option(0, "CPU threads of the target; 0 = torch's choice", low=0, metavar="N")
    short: bool = option(False, "a few small steps and answers: whether it runs at all")
    out: str = option("gpu_check.json", "file for everything that was measured", metavar="FILE", often=True)
    json: bool = option(False, "print what was measured as JSON")
