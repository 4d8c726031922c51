"""Cacheback: drafts from tables of what followed what, without any model (arXiv 2511.21699, EMNLP 2025).

The last token (the leader) is looked up in two tables: a dynamic one, which learns from the text at hand, then a frozen
one, filled from a corpus. What followed it (the followers, a few tokens each) grows a tree, and the last token of each
follower is the next leader, until the tree is large or deep enough. Where the paper leaves room (node budget, how two
tables meet at a node, the order of growth) docs/drafters.md says what was chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_client.drafters import OFF, table_file
from edge_client.drafters.growth import Cacheback
from edge_client.drafters.personal import PersonalTable
from edge_client.drafters.table_choice import TableFiles, beside
from edge_client.drafters.table_file import TableFile
from edge_client.drafters.tables import DraftTable, FrozenTable, LruTable
from opensled.errors import VocabularyMismatch
from opensled.messages import DraftToken, ModelInfo, TreeNode
from opensled.sampling import Sampler

log = logging.getLogger(__name__)


class CachebackFactory:
    """`--drafter cacheback`: one frozen table for all drafters; `model`: where one may lie beside."""

    def __init__(self, model: str = "", threads: int = 0) -> None:
        self._model = model
        self._ends: frozenset[int] = frozenset()
        self._personal: PersonalTable | None = None
        self.use_tables(TableFiles())

    def use_tables(self, files: TableFiles) -> None:
        """See `TableUser`."""
        self._files = files
        self._file: TableFile | None = None
        named = Path(files.frozen).expanduser() if files.frozen else beside(self._model)
        self._path = None if files.frozen == OFF else named
        self.name = f"cacheback {self._path.name}" if self._path else "cacheback"

    def check_vocabulary(self, target: ModelInfo) -> None:
        """See `DrafterFactory`. A table that nobody named, but that lies beside the model, is left out instead.

        Raises NotFound, UsageError or UnsupportedModel, too, for a frozen table of no use.
        """
        found = self._loaded()
        if found and self._path:
            try:
                found.require(target, self._path)
            except VocabularyMismatch as error:
                if self._files.frozen:
                    raise
                log.warning("drafting without a frozen table: %s", error)
                self.use_tables(self._files._replace(frozen=OFF))
        self._ends = frozenset(target.eos_ids)
        if self._files.personal != OFF:
            self._personal = PersonalTable(Path(self._files.personal), target)

    def create(self) -> CachebackDrafter:
        found = self._loaded()
        frozen = FrozenTable(found.rows, found.vocabulary.size) if found else None
        return CachebackDrafter(frozen, self._ends, self._personal)

    def _loaded(self) -> TableFile | None:
        if self._path and not self._file:
            self._file = table_file.read(self._path)
        return self._file


class CachebackDrafter:
    """Drafts one sequence at a time from its tables; the dynamic one starts empty unless it is personal."""

    def __init__(
        self,
        frozen: DraftTable | None = None,
        ends: frozenset[int] = frozenset(),
        personal: PersonalTable | None = None,
    ) -> None:
        self._personal = personal
        self._cache = Cacheback(personal.table if personal else LruTable(), frozen, ends)
        self._tail: tuple[int, ...] = ()  # the newest tokens, as much as tables need

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        if self._personal:
            self._personal.save()
        self._forget()
        self._sampler = sampler
        self._tail = self._cache.dynamic.update((), prompt)

    def commit(self, tokens: Sequence[int]) -> None:
        self._cache.learn(self._tail, tokens)
        self._tail = self._cache.dynamic.update(self._tail, tokens)

    def propose(self) -> Iterator[DraftToken]:
        for token, confidence in self.guess(self._tail):
            yield self._sampler.certain(token, confidence)

    def propose_tree(self) -> Iterator[TreeNode]:
        """See `TreeDrafter`."""
        for token, parent, confidence in self._cache.tree(self._tail):
            yield TreeNode(self._sampler.certain(token, confidence), parent)

    def guess(self, tail: Sequence[int]) -> Iterator[tuple[int, float]]:
        """What may follow any text that ends with `tail`, not only the truth: ids with their confidence."""
        return self._cache.chain(tail)

    def close(self) -> None:
        """Nothing of the sequence stays; a personal table is written down."""
        self._forget()
        if self._personal:
            self._personal.save(now=True)

    def _forget(self) -> None:
        self._cache.calibration.begin()
        self._tail = ()
        self._cache.dynamic = self._personal.table if self._personal else LruTable()
