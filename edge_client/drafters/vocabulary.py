"""How a draft model's vocabulary relates to the target's: the same ids, mostly the same ids, or by text only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from opensled.core.messages import ModelInfo
from opensled.core.vocabulary import is_same, require_same

if TYPE_CHECKING:
    from opensled.text.tokenizer import TargetTokenizer

# Share of the larger vocabulary that both spell alike, from which on drafts keep their ids. Chosen: Gemma 3 with and
# without image ids, and Qwen2.5 and its R1 distills, share more than 0.99; vocabularies that were trained apart share
# a few hundred ids.
MOSTLY = 0.9
LINE_ENDS = ("Ċ", "<0x0A>", "\n")  # as tokenizers spell one


class Vocabulary(NamedTuple):
    """A draft model's vocabulary beside the target's."""

    kind: Literal["same", "shared", "text"] = "same"
    # Of shared ids: the draft's ids end here, those before it that the target spells otherwise, and the id that stands
    # for the target's others
    size: int = 0
    foreign: frozenset[int] = frozenset()
    stand_in: int = 0

    @property
    def words(self) -> str:
        """For people."""
        if self.kind == "text":
            return "draft and target have different ones: drafts go by text and are tokenized again"
        if self.kind == "shared":
            return f"draft and target share nearly all ids; masked of the draft's: {len(self.foreign):,}"
        return "draft and target share it"


SAME, BY_TEXT = Vocabulary(), Vocabulary("text")


def compare(
    draft: str, pieces: Sequence[str], target: ModelInfo, tokenizer: TargetTokenizer | None
) -> Vocabulary:
    """`pieces`: the spelling of each id of the model `draft`; `tokenizer`: the target's.

    Raises VocabularyMismatch if the vocabularies differ and there is no `tokenizer`.
    """
    if tokenizer is None:
        require_same(draft, pieces, target.model_id, target.vocab_size, target.fingerprint)
    if tokenizer is None or is_same(pieces, target.vocab_size, target.fingerprint):
        return SAME
    known = tokenizer.pieces
    alike = {id: mine for id, (mine, theirs) in enumerate(zip(pieces, known)) if mine == theirs != ""}
    if len(alike) < MOSTLY * max(len(pieces), len(known)):
        return BY_TEXT
    size = min(len(pieces), len(known))
    line_end = (id for id, piece in alike.items() if piece in LINE_ENDS)
    return Vocabulary("shared", size, frozenset(range(size)) - alike.keys(), next(line_end, min(alike)))
