"""What is settled when a sequence is opened."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.core.messages import SamplingParams
from verify_server.rules.base import AcceptanceRule


@dataclass(frozen=True, slots=True)
class Terms:
    """It stays as long as the sequence lives, whoever reads it."""

    params: SamplingParams
    key: bytes  # noise key
    rule: AcceptanceRule
    rule_label: str = ""  # its name with all options
    background: bool = False
    images: tuple[bytes, ...] = ()  # digests of the pictures in its prompt
