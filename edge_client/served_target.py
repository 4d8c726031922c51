"""Getting to know the target behind a link, at the start and again when the server has changed it."""

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
    """What a device knows of the model whose words it speaks."""

    info: ModelInfo
    tokenizer: EdgeTokenizer


async def meet(link: Link, rule: str, factory: DrafterFactory, cache: Path | None) -> ServedTarget:
    """The target behind `link`.

    Raises Unsupported when it is not served by `rule`, VocabularyMismatch when the drafts of `factory` cannot be its
    words, and Unreachable.
    """
    info = await link.describe()
    _require_rule(rule, info)
    factory.check_vocabulary(info)
    return ServedTarget(info, await tokenizers.load(info, link.tokenizer_json, cache))


def is_another(error: Exception) -> bool:
    """Whether a server refuses to open a sequence because it serves another target than the one described before."""
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
