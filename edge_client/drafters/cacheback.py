"""Cacheback: drafts from tables of what followed what, without any model (arXiv 2511.21699, EMNLP 2025).

The last token (the leader) is looked up in two tables: a dynamic one, which learns from the text at hand, then a frozen
one, filled from a corpus. What followed it (the followers, a few tokens each) grows a tree, and the last token of each
follower is the next leader, until the tree is large or deep enough. docs/drafters.md says what this implementation
chooses where the paper leaves it open (node budget, order of the two tables at a node, order of growth).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_client.drafters import OFF, table_file
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.growth import BOTH, FROZEN, WIDEST, Calibration, Row, grow_chain, grow_tree
from edge_client.drafters.personal import PersonalTable
from edge_client.drafters.table_file import TableFile
from edge_client.drafters.tables import FrozenTable, LruTable
from opensled.errors import NotFound, VocabularyMismatch
from opensled.messages import DraftToken, ModelInfo, TreeNode
from opensled.sampling import Sampler
from opensled.store import model_file, model_path

log = logging.getLogger(__name__)

PATTERN = "*.table"


def beside(model: str) -> Path | None:
    """The draft table in a model's folder; None if there is none or several."""
    try:
        path = model_path(model)
        return model_file(str(path.parent if path.is_file() else path), PATTERN)
    except NotFound:
        return None


class CachebackFactory(DrafterFactory):
    """`--drafter cacheback`: one frozen table for all drafters; `model`: where one may lie beside."""

    uses_tables = True

    def __init__(self, model: str = "", threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:
        self._options = options
        self._ends: frozenset[int] = frozenset()
        self._personal: PersonalTable | None = None
        self._file: TableFile | None = None
        named = options.draft_table
        self._path = None if named == OFF else Path(named).expanduser() if named else beside(model)
        self.name = f"cacheback {self._path.name}" if self._path else "cacheback"

    def check_vocabulary(self, target: ModelInfo) -> None:
        """See `DrafterFactory`. A table that lies beside the model and was not named is left out instead.

        Also raises NotFound, UsageError or UnsupportedModel for a named table that cannot be used.
        """
        found = self._loaded()
        if found and self._path:
            try:
                found.require(target, self._path)
            except VocabularyMismatch as error:
                if self._options.draft_table:
                    raise
                log.warning("drafting without a frozen table: %s", error)
                self.name, self._path, self._file = "cacheback", None, None
        self._ends = frozenset(target.eos_ids)
        if self._options.personal_table != OFF:
            self._personal = PersonalTable(Path(self._options.personal_table), target)

    def create(self) -> CachebackDrafter:
        found = self._loaded()
        frozen = FrozenTable(found.rows, found.vocab_size) if found else None
        return CachebackDrafter(frozen, self._ends, self._personal)

    def _loaded(self) -> TableFile | None:
        if self._path and not self._file:
            self._file = table_file.read(self._path)
        return self._file


class CachebackDrafter(Drafter):
    """Drafts one sequence at a time from its tables; the dynamic one starts empty unless it is personal."""

    def __init__(
        self,
        frozen: FrozenTable | None = None,
        ends: frozenset[int] = frozenset(),
        personal: PersonalTable | None = None,
    ) -> None:
        """`ends`: ids after which nothing follows."""
        self._frozen, self._ends, self._personal = frozen, ends, personal
        self._calibration = Calibration()
        self._forget()

    def _forget(self) -> None:
        self._calibration.begin()
        self._tail: tuple[int, ...] = ()  # the newest tokens, as many as the tables need
        self._dynamic = self._personal.table if self._personal else LruTable()

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        if self._personal:
            self._personal.save()
        self._forget()
        self._sampler = sampler
        self._tail = self._dynamic.update((), prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        text = (*self._tail, *tokens)
        for place in range(len(self._tail), len(text)):
            self._calibration.learn(self._row(text[:place]), text[place:])
        self._tail = self._dynamic.update(self._tail, tokens)

    def propose(self) -> Iterator[DraftToken]:
        for token, confidence in self.guess(self._tail):
            yield self._sampler.certain(token, confidence)

    def propose_tree(self) -> Iterator[TreeNode]:
        for token, parent, place in grow_tree(self._row, self._ends, self._tail):
            yield TreeNode(self._sampler.certain(token, self._calibration.confidence(*place)), parent)

    def guess(self, tail: Sequence[int]) -> Iterator[tuple[int, float]]:
        """What may follow any text that ends with `tail`, not only the truth: ids with their confidence."""
        for token, place in grow_chain(self._row, self._ends, tuple(tail)):
            yield token, self._calibration.confidence(*place)

    def close(self) -> None:
        """Forget the sequence and save the personal table."""
        self._forget()
        if self._personal:
            self._personal.save(now=True)

    def _row(self, text: tuple[int, ...]) -> Row:
        """What may follow `text`: the dynamic table's followers, then the frozen one's, no follower twice."""
        newer = self._dynamic.followers(text)
        older = self._frozen.followers(text) if self._frozen else ()
        best = list(dict.fromkeys(newer + older))[:WIDEST]
        return tuple(
            [(f, FROZEN if rank >= len(newer) else BOTH * (f in older)) for rank, f in enumerate(best)]
        )
