"""The terms of a sequence, set when it is opened."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.core.messages import Guide, SamplingParams
from verify_server.rules.base import AcceptanceRule


@dataclass(frozen=True, slots=True)
class Terms:
    """They stay the same as long as the sequence lives, for all its readers."""

    params: SamplingParams
    key: bytes  # noise key
    rule: AcceptanceRule
    rule_label: str = ""  # its name with all options
    background: bool = False
    images: tuple[bytes, ...] = ()  # digests of the pictures in its prompt
    guide: Guide | None = None
