"""The target behind a link: its description and its tokenizer, checked against what this device drafts with."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from edge_client.drafters.base import DrafterFactory
from edge_client.link import tokenizer_cache as tokenizers
from edge_client.link.link import Link
from opensled.core.errors import NotFound, Unreachable, Unsupported, VocabularyMismatch
from opensled.core.images import ImageFacts
from opensled.core.messages import CallForm, Limits, ModelInfo, RuleFacts, ThoughtTags
from opensled.text.tokenizer import TargetTokenizer
from opensled.wire.padding import PADDING, PADDING_REQUIRED


@dataclass(frozen=True)
class ServedTarget:
    """What a device knows of the target."""

    info: ModelInfo
    tokenizer: TargetTokenizer


async def fetch_target(link: Link, rule: str, factory: DrafterFactory, cache: Path | None) -> ServedTarget:
    """The target behind `link`.

    Raises Unsupported if the server does not serve `rule`, VocabularyMismatch if the drafts of `factory` are of another
    vocabulary, and Unreachable.
    """
    info = await link.describe()
    _require_rule(rule, info)
    tokenizer = await tokenizers.load(info, link.tokenizer_json, cache)
    factory.fit(info, tokenizer)
    return ServedTarget(info, tokenizer)


def is_another(error: Exception) -> bool:
    """Whether a server refuses a sequence because it serves another target than it described before."""
    return isinstance(error, VocabularyMismatch) or (
        isinstance(error, NotFound) and error.field == "model_id"
    )


def _require_rule(rule: str, info: ModelInfo) -> None:
    if not info.serves(rule):
        raise Unsupported(
            f"this server does not serve rule {rule!r}, only {', '.join(info.rule_names)}; see its rules, "
            "--loose-rules and --trust-device-probabilities",
            "rule",
        )


def pads(wanted: bool, info: ModelInfo) -> bool:
    """Whether a device asks the server that `info` describes for padding: it wants that, or the server requires it.

    Raises Unsupported if the server cannot pad.
    """
    if wanted and PADDING not in info.capabilities:
        raise Unsupported("this server cannot pad frames; update it, or drop --pad-frames", "padding")
    return wanted or PADDING_REQUIRED in info.capabilities


LISTS = ("eos_ids", "capabilities", "aliases", "template_variables")


@dataclass(frozen=True)
class RememberedTarget:
    """A target as its server described it, and its chat template ("" = none)."""

    info: ModelInfo
    chat_template: str


class TargetMemory:
    """The target of one server, in a file beside the tokenizers. It is no secret: a server tells it to every device."""

    def __init__(self, cache: Path, server: str) -> None:
        """`server`: HOST:PORT, as configured."""
        self._cache, self._server = cache, server
        self._path = cache / "servers" / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"

    async def keep(self, link: Link, info: ModelInfo) -> None:
        """Remember `info` and its chat template."""
        known = self.recall()
        if known is None or known.info != info:
            template = await link.chat_template() if info.has_chat_template else ""
            document = {"info": dataclasses.asdict(info), "chat_template": template}
            tokenizers.keep(self._path, json.dumps(document).encode())

    def recall(self) -> RememberedTarget | None:
        """What was kept; None if there is nothing or it is damaged."""
        try:
            document = json.loads(self._path.read_bytes())
            fields = document["info"]
            fields |= {name: tuple(fields[name]) for name in LISTS}
            fields["limits"] = Limits(**fields["limits"])
            fields["images"] = ImageFacts(**fields["images"]) if fields.get("images") else None
            fields["thoughts"] = ThoughtTags(*fields["thoughts"]) if fields["thoughts"] else None
            fields["calls"] = CallForm(*fields["calls"]) if fields.get("calls") else None
            fields["rules"] = tuple(RuleFacts(**rule) for rule in fields["rules"])
            return RememberedTarget(ModelInfo(**fields), str(document["chat_template"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    async def target(self, factory: DrafterFactory, error: Unreachable) -> ServedTarget:
        """The remembered target, for the drafts of `factory`. Raises Unreachable if too little is remembered."""
        known = self.recall()
        if known is None:
            raise Unreachable(
                f"{error}; this device has never connected to a server there, so it cannot answer alone"
            ) from error

        async def fetch() -> bytes:
            raise Unreachable(f"{error}; and its tokenizer is not in {self._cache}") from error

        tokenizer = await tokenizers.load(known.info, fetch, self._cache)
        factory.fit(known.info, tokenizer)
        return ServedTarget(known.info, tokenizer)
