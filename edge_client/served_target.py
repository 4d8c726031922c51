"""The target behind a link: its description and its tokenizer, checked against what this device drafts with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_client import tokenizer as tokenizers
from edge_client.drafters.base import DrafterFactory
from edge_client.link import Link
from edge_client.tokenizer import EdgeTokenizer
from opensled.errors import NotFound, Unsupported, VocabularyMismatch
from opensled.messages import ModelInfo


@dataclass(frozen=True)
class ServedTarget:
    """What a device knows of the target."""

    info: ModelInfo
    tokenizer: EdgeTokenizer


async def fetch_target(link: Link, rule: str, factory: DrafterFactory, cache: Path | None) -> ServedTarget:
    """The target behind `link`.

    Raises Unsupported if the server does not serve `rule`, VocabularyMismatch if the drafts of `factory` are of another
    vocabulary, and Unreachable.
    """
    info = await link.describe()
    _require_rule(rule, info)
    factory.check_vocabulary(info)
    return ServedTarget(info, await tokenizers.load(info, link.tokenizer_json, cache))


def is_another(error: Exception) -> bool:
    """Whether a server refuses a sequence because it serves another target than it described before."""
    return isinstance(error, VocabularyMismatch) or (
        isinstance(error, NotFound) and error.field == "model_id"
    )


def _require_rule(rule: str, info: ModelInfo) -> None:
    if not info.serves(rule):
        raise Unsupported(
            f"this server does not serve rule {rule!r}, only {', '.join(info.rule_names)}; see its --rules and "
            "--trust-device-probabilities",
            "rule",
        )
