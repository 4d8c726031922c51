"""What `opensled demo` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.config import option


@dataclass(frozen=True)
class DemoConfig:
    """A server and devices on this machine."""

    max_tokens: int = option(64, "most tokens of an answer", low=1, metavar="N")
    prompts: int = option(4, "prompts for each device", low=1, metavar="N")
    draft_length: int = option(0, "most tokens of a draft block; 0 = as the server hints", low=0, metavar="K")
    engine: str = option("torch", "the server's engine", choices=("torch", "llamacpp"))
    mtls: bool = option(
        False, "server and devices ask each other for certificates, and the server for tokens"
    )
    json: bool = option(False, "print the figures as JSON")
