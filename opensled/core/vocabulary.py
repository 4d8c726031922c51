"""The fingerprint of a vocabulary: for device and server every token id must stand for the same text."""

import hashlib
from collections.abc import Iterable, Sequence

from opensled.core.errors import VocabularyMismatch


def fingerprint(pieces: Iterable[str]) -> str:
    """sha256 (hex) over the pieces of ids 0, 1, 2, ... as the tokenizer spells them (byte-level BPE: Ġthe)."""
    digest = hashlib.sha256()
    for piece in pieces:
        spelled = piece.encode("utf-8", "surrogatepass")
        digest.update(len(spelled).to_bytes(4, "little") + spelled)
    return digest.hexdigest()


def is_same(draft_pieces: Sequence[str], target_size: int, target_print: str) -> bool:
    """Whether the first `target_size` pieces of a draft are the target's.

    Models pad their vocabularies differently (Qwen2.5: 151936 and 152064), so only the tokenizer's ids count.
    """
    return len(draft_pieces) >= target_size and fingerprint(draft_pieces[:target_size]) == target_print


def require_same(
    draft: str, draft_pieces: Sequence[str], target: str, target_size: int, target_print: str
) -> None:
    """Raise VocabularyMismatch unless `is_same`."""
    if is_same(draft_pieces, target_size, target_print):
        return
    raise VocabularyMismatch(
        f"draft {draft!r} ({len(draft_pieces)} tokens) and target {target!r} ({target_size} tokens) do not share "
        "a vocabulary; use a draft model of the target's own family, or --drafter lookup"
    )
