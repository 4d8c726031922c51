"""The tokenizers of servers, kept in a folder of the device: fetched once, and checked whenever they are read."""

import contextlib
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from opensled.core.errors import ProtocolError, VocabularyMismatch
from opensled.core.files import write_whole
from opensled.core.messages import ModelInfo
from opensled.core.vocabulary import fingerprint
from opensled.text.tokenizer import TargetTokenizer


async def load(
    info: ModelInfo, fetch: Callable[[], Awaitable[bytes]], cache_dir: Path | None = None
) -> TargetTokenizer:
    """The tokenizer of the server that `info` describes. Raises as `_load_json` does, and VocabularyMismatch if its
    vocabulary is not the one that the server announced."""
    tokenizer = TargetTokenizer(await _load_json(info, fetch, cache_dir))
    if fingerprint(tokenizer.pieces) != info.fingerprint:
        raise VocabularyMismatch(f"the tokenizer.json of {info.model_id} spells another vocabulary")
    return tokenizer


async def _load_json(
    info: ModelInfo, fetch: Callable[[], Awaitable[bytes]], cache_dir: Path | None = None
) -> bytes:
    """The tokenizer.json of the server that `info` describes: from the cache if it is intact there, else fetched.

    Raises ProtocolError if the bytes are not those that the server announced.
    """
    path = cache_dir / f"{_file_name(info.tokenizer_hash)}.json" if cache_dir else None
    cached = _read(path, info.tokenizer_hash)
    content = cached or await fetch()
    if _digest(content) != info.tokenizer_hash:
        raise ProtocolError("the server's tokenizer.json is not the one it announced; restart the server")
    if path and not cached:
        keep(path, content)
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _file_name(tokenizer_hash: str) -> str:
    """The server chooses this text and it becomes a path, so only a sha256 is allowed."""
    if not re.fullmatch(r"[0-9a-f]{64}", tokenizer_hash):
        raise ProtocolError("the server sent an invalid sha256 of its tokenizer")
    return tokenizer_hash


def _read(path: Path | None, expected: str) -> bytes | None:
    """The cached bytes; None if there are none or they are damaged."""
    try:
        content = path.read_bytes() if path else b""
    except OSError:
        return None
    return content if _digest(content) == expected else None


def keep(path: Path, content: bytes) -> None:
    """Write a file of the cache; errors are ignored, since everything works without a cache."""
    with contextlib.suppress(OSError):
        write_whole(path, content, private=True)
