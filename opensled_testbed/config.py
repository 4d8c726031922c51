"""What `opensled demo` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.config import option


@dataclass(frozen=True)
class DemoConfig:
    """A server and devices on this machine."""

    max_tokens: int = option(64, "most tokens of an answer", low=1, metavar="N")
    prompts: int = option(4, "prompts for each device", low=1, metavar="N")
    draft_length: int = option(4, "most tokens of a draft block", low=0, metavar="K")
    json: bool = option(False, "print the figures as JSON")
