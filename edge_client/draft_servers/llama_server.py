"""llama.cpp's server: it takes and gives token ids, where its vocabulary is the target's; text elsewhere."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from edge_client.draft_servers.address import DraftAddress
from edge_client.draft_servers.completions import list_entries
from edge_client.draft_servers.http_stream import fetch, first_token_s, read_object, sse_data, stream
from edge_client.draft_servers.llama_chunks import TokenChunks, completion, is_last
from edge_client.draft_servers.served_text import TextDialect, pieces_of
from edge_client.drafters.by_text import Piece
from edge_client.drafters.outage import Outage
from edge_client.drafters.streamed import Scored, TokenSource
from opensled.core.errors import DraftSourceError, NotFound
from opensled.text.tokenizer import TargetTokenizer

PATH = "/completion"
OWNER = "llamacpp"  # of its models, as it lists them
IDS_AT_ONCE = 8192  # whose spelling one request asks for
PROBES = ("def f(x):\n    return x + 1", "Ünïcödé, 中文 and 🙂", "In 1984,  two spaces\n\n\tand a tab.")


@dataclass(frozen=True)
class LlamaFacts:
    """What a llama-server tells of itself."""

    models: tuple[str, ...]  # names by which a user may know its model
    context: int  # tokens of a text, for each slot
    slots: int  # texts that it keeps at the same time
    vocab_size: int  # 0 = not told
    is_router: bool = False  # it has several models, and a request names one
    aliases: tuple[str, ...] = ()  # further names of its models


def read_facts(address: DraftAddress) -> LlamaFacts:
    """Raises NotFound or DraftSourceError for a server of another kind."""
    props = fetch(address, "/props")
    settings = props.get("default_generation_settings")
    if not isinstance(settings, dict):
        raise DraftSourceError("its /props are not those of a llama-server")
    listed = list_entries(fetch(address, "/v1/models"))
    entry = next(
        (each for each in listed if address.model in (each.get("id"), *_aliases(each))),
        listed[0] if listed else {},
    )
    if entry.get("owned_by", OWNER) != OWNER:
        raise DraftSourceError("its /props are those of a llama-server, which it is not")
    meta = entry.get("meta")
    is_router = props.get("role") == "router"
    names = [entry.get("id"), props.get("model_path"), props.get("model_alias")]
    if is_router:
        names = [each.get("id") for each in listed]
    return LlamaFacts(
        tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)),
        _count(settings.get("n_ctx"), 0),
        max(1, _count(props.get("total_slots"), 1)),
        _count(meta.get("n_vocab"), 0) if isinstance(meta, dict) else 0,
        is_router,
        tuple(alias for each in (listed if is_router else [entry]) for alias in _aliases(each)),
    )


def _aliases(entry: dict[str, Any]) -> list[str]:
    told = entry.get("aliases")
    return [each for each in told if isinstance(each, str)] if isinstance(told, list) else []


def _count(value: object, otherwise: int) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else otherwise


def has_vocabulary(address: DraftAddress, facts: LlamaFacts, tokenizer: TargetTokenizer, size: int) -> bool:
    """Whether ids mean to the server what they mean to the target, whose vocabulary has `size` ids.

    The spelling of all ids is compared, and how both cut a few texts. Raises DraftSourceError.
    """
    if facts.vocab_size < size:
        return False
    whole = [id for id in range(size) if id not in tokenizer.special_ids and _is_text(tokenizer, id)]
    try:
        return all(
            _spelled(address, whole[start : start + IDS_AT_ONCE])
            == b"".join(map(tokenizer.token_bytes, whole[start : start + IDS_AT_ONCE]))
            for start in range(0, len(whole), IDS_AT_ONCE)
        ) and all(
            fetch(address, "/tokenize", {"content": text, "add_special": False}).get("tokens")
            == list(tokenizer.encode_rendered(text))
            for text in PROBES
        )
    except NotFound:
        return False


def _is_text(tokenizer: TargetTokenizer, id: int) -> bool:
    """Whether the id is whole characters: JSON has no others."""
    try:
        return bool(tokenizer.token_bytes(id).decode("utf-8"))
    except UnicodeDecodeError:
        return False


def _spelled(address: DraftAddress, ids: Sequence[int]) -> bytes:
    text = fetch(address, "/detokenize", {"tokens": list(ids)}).get("content")
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""


class LlamaServerTokens(TokenSource):
    """One slot of a llama-server, which keeps the text of one drafter in its cache."""

    def __init__(self, address: DraftAddress, tokenizer: TargetTokenizer, slot: int, outage: Outage) -> None:
        self._address, self._slot, self._chunks = address, slot, TokenChunks(tokenizer)
        self._outage = outage

    def stream(self, ids: Sequence[int], candidates: int) -> Generator[Scored | None, None, None]:
        def read(line: bytes) -> Sequence[Scored] | None:
            chunk = _chunk(line)
            if chunk is None:
                return ()
            tokens = self._chunks.read(chunk, candidates)
            return None if is_last(chunk) and not tokens else tokens

        body = completion(ids, candidates, self._slot)
        begin = partial(stream, self._address, PATH, body, read, waited=self._outage.waited)
        return self._outage.patient(begin, first_token_s(len(ids)))

    def close(self) -> None:
        """The server keeps the text until it needs the slot."""


class LlamaServerText(TextDialect):
    """The same server, for a target of another vocabulary."""

    path = PATH

    def __init__(self, slot: int) -> None:
        self._slot = slot

    def request(self, prompt: str) -> dict[str, Any]:
        return completion(prompt, 1, self._slot)

    def read(self, line: bytes) -> Sequence[Piece] | None:
        chunk = _chunk(line)
        if chunk is None:
            return ()
        is_end = is_last(chunk) and chunk.get("stop_type") == "eos"
        return pieces_of(chunk.get("content"), is_end, _chance(chunk))


def _chunk(line: bytes) -> dict[str, Any] | None:
    """The chunk of a line; None = it has none."""
    data = sse_data(line)
    return read_object(data) if data else None


def _chance(chunk: dict[str, Any]) -> float:
    """The probability of a chunk's token; 1 where it is not told."""
    try:
        logprob = float(chunk["completion_probabilities"][0]["logprob"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return 1.0
    return math.exp(min(logprob, 0.0)) if math.isfinite(logprob) else 1.0
